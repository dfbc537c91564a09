"""A connection to Redis that loses replies of scripts, so that redis-py sends the call again."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

P = ParamSpec("P")
T = TypeVar("T")


class LosesReplies(redis.Connection):
    """While ``armed`` is above zero, the server runs a script and its reply is lost.

    Attributes:
        armed: replies that are still to be lost.
        lost: replies lost so far.
    """

    armed = 0
    lost = 0
    _calls_script = False

    def send_packed_command(self, command: object, check_health: bool = True) -> None:
        super().send_packed_command(command, check_health)
        packed = [command] if isinstance(command, bytes) else command
        self._calls_script = any(b"EVALSHA" in bytes(part) for part in packed)  # type: ignore[attr-defined]

    def read_response(self, *args: object, **kwargs: object) -> object:
        answer = super().read_response(*args, **kwargs)  # type: ignore[arg-type]
        if LosesReplies.armed and self._calls_script:
            LosesReplies.armed -= 1
            LosesReplies.lost += 1
            self.disconnect()
            raise redis.ConnectionError("the reply was lost")
        return answer


def losing_client(port: int) -> redis.Redis:
    """Return a client of a local Redis whose connections are `LosesReplies`, unarmed."""
    LosesReplies.armed = LosesReplies.lost = 0
    pool = redis.ConnectionPool(
        connection_class=LosesReplies,
        host="127.0.0.1",
        port=port,
        decode_responses=True,
        retry=Retry(NoBackoff(), 3),
    )
    return redis.Redis(connection_pool=pool)


def losing_reply(call: Callable[P, T]) -> Callable[P, T]:
    """Wrap ``call`` so that the reply to its first script is lost.

    It must use a `losing_client`.
    """

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        LosesReplies.armed = 1
        return call(*args, **kwargs)

    return wrapped
