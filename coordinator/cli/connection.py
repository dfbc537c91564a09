"""The connection of a command to Redis. A command answers, or says that Redis does not, within five seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from unstuck.coordinator.client import Client
from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.coordinator.unreachable import unreachable
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import connect

ANSWER_TIMEOUT = 2.0  # seconds for the first answer
REPEATS = 1  # of a request on a connection that has answered before


@dataclass(frozen=True, slots=True)
class Connection:
    """The client of a command, and its connection to Redis."""

    client: Client
    redis: redis.Redis


def settings_here() -> Settings:
    """The settings of this process, with the Redis of the local fleet where none is set."""
    return with_local_fleet(Settings())


@contextmanager
def connected(settings: Settings | None = None, otherwise: str = "") -> Iterator[Connection]:
    """A connection, closed at the end. ``otherwise``: the advice if Redis does not answer, instead of the usual.

    Raises:
        Unreachable: Redis did not answer, or answered with an error, in the block or before it.
    """
    settings = settings or settings_here()
    url = settings.redis_url
    store = connect(url, timeout=ANSWER_TIMEOUT, repeats=0)
    with Client(settings, redis_client=store) as client:
        try:
            # Without repeats: redis-py multiplies those of the connection with those of the request, so a frozen
            # server would hold a person for four times the timeout.
            store.ping()
            store.set_retry(Retry(ExponentialBackoff(base=0.05, cap=0.5), REPEATS))
            yield Connection(client, store)
        except redis.RedisError as error:
            raise unreachable(url, error, otherwise) from error
