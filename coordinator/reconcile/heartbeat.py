"""The heartbeat of a coordinator, which writes it into the registry of processes each second.

It also records since when the oldest message of each queue waits, because the length alone does not
show whether a queue is being consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis

from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.protocol.process_info import CoordinatorInfo, WarehouseSeen
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.warehouse.probe import WarehouseProbe

EVERY = 1.0  # seconds between two heartbeats of one coordinator
EVERY_LOOK = 5.0  # seconds between two looks at the queues

QueueAges = Mapping[str, tuple[int, float]]
"""Queue → its oldest message (the hash), and since when that has lain there. Queues that are empty
are left out.
"""


def ages_after(ages: QueueAges, oldest: Mapping[str, str], at: float) -> QueueAges:
    """Update the ages of queues, which were read at the time ``at``. Pure.

    Args:
        oldest: queue → its oldest message.
    """
    now = {}
    for queue, message in oldest.items():
        before, since = ages.get(queue, (None, at))
        # A clock that was set back must not make a message look younger than this look.
        now[queue] = (hash(message), min(since, at) if before == hash(message) else at)
    return now


class Heartbeat:
    """One coordinator in the list of the fleet.

    ``name`` is ``host:pid:word``; ``client`` must decode responses.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        name: str,
        probe: WarehouseProbe | None = None,
        targets: Iterable[str] = (),
    ) -> None:
        """Create the heartbeat.

        Args:
            probe: returns the warehouse that this coordinator sees.
            targets: of notices.
        """
        self._probe, self._targets = probe, tuple(targets)
        self._redis = client
        self._keys = keys
        self._registry = ProcessRegistry(client, keys)
        self._name = name
        self._release = release_here()
        self._queue_ages: QueueAges = {}
        self._looked_at = 0.0

    def beat(self, read_ago: float | None, swept_ago: float | None) -> None:
        """Record that this coordinator is alive. Never raises redis.RedisError.

        Args:
            read_ago: seconds since it last read a worker's report; None if never.
            swept_ago: seconds since it last completed a sweep; None if never.
        """
        host, pid, _ = self._name.rsplit(":", 2)

        def status(now: float) -> CoordinatorInfo:
            self._look_at_queues(now)
            return CoordinatorInfo(
                id=self._name,
                host=host,
                pid=int(pid),
                queues=(CONTROL_QUEUE,),
                heard_at=now,
                warehouse=WarehouseSeen() if self._probe is None else self._probe.seen(now),
                runs_on=self._release,
                read_at=None if read_ago is None else now - read_ago,
                swept_at=None if swept_ago is None else now - swept_ago,
                oldest_since={queue: since for queue, (_, since) in self._queue_ages.items()},
                targets=self._targets,
            )

        self._registry.note(status)

    def _look_at_queues(self, now: float) -> None:
        """Read the ages of the queues of runners and of coordinators. Raises: redis.RedisError."""
        if 0 <= now - self._looked_at < EVERY_LOOK:
            return
        self._looked_at = now
        queues = sorted(
            {
                CONTROL_QUEUE,
                *(queue for runner in self._registry.runners() for queue in runner.queues),
            }
        )
        with self._redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.lindex(self._keys.queue(queue), -1)  # Celery adds on the left
            oldest = pipe.execute(raise_on_error=False)
        # A key that is no list is no queue of Celery's.
        messages = {
            queue: text for queue, text in zip(queues, oldest, strict=True) if isinstance(text, str)
        }
        self._queue_ages = ages_after(self._queue_ages, messages, now)

    def leave(self) -> None:
        """Remove this coordinator from the list, since it shuts down cleanly.

        Never raises redis.RedisError.
        """
        self._registry.leave(self._name)

    def forget_silent(self) -> int:
        """Remove processes that were silent for an hour. Never raises. Returns their number."""
        return self._registry.forget_silent()
