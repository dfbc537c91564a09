"""Wake-ups on their way: taken off the queues before a worker receives them; then lost, late, or
sent once more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# Connections that ask for messages: Redis serves who has waited longest, and workers ask as well.
THIEVES = 4
ASKS_FOR = 0.5  # seconds


class Thief:
    """Takes messages off ``queues`` (keys of lists) from now on, in competition with those that
    listen there.

    Attributes:
        taken: each with the key of its queue.
    """

    def __init__(self, url: str, queues: Sequence[str]) -> None:
        self.taken: list[tuple[str, str]] = []
        self._url, self._queues = url, list(queues)
        self._enough = threading.Event()
        self._threads = [
            threading.Thread(target=self._steal, name="thief", daemon=True) for _ in range(THIEVES)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take no more. Afterwards ``taken`` does not change."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _steal(self) -> None:
        with redis.Redis.from_url(
            self._url,
            decode_responses=True,
            socket_timeout=4 * ASKS_FOR,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            while not self._enough.is_set():
                try:
                    found = client.brpop(self._queues, timeout=ASKS_FOR)
                except redis.RedisError:
                    self._enough.wait(0.1)  # the server is away
                    continue
                if found is not None:
                    self.taken.append((str(found[0]), str(found[1])))


def put_back(client: redis.Redis, taken: Sequence[tuple[str, str]], times: int = 1) -> int:
    """Send each message that was taken ``times`` times. Returns how many were sent. Raises:
    redis.RedisError.
    """
    for queue, message in taken:
        client.lpush(queue, *[message] * times)
    return len(taken) * times
