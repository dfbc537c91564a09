"""The connection of a command to Redis.

A command answers, or reports that Redis does not answer, within five seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from unstuck.client.client import Client
from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.coordinator.unreachable import answering
from unstuck.tasks.settings import Settings


@dataclass(frozen=True, slots=True)
class CliConnection:
    """The client of a command, and its connection to Redis."""

    client: Client
    redis: redis.Redis


def settings_here() -> Settings:
    """Return the settings of this process, with the Redis of the local fleet if none is set."""
    return with_local_fleet(Settings())


@contextmanager
def connected(settings: Settings | None = None, otherwise: str = "") -> Iterator[CliConnection]:
    """Connect for a block. ``otherwise``: replaces the usual advice if Redis does not answer.

    Raises:
        Unreachable: Redis did not answer, or answered with an error, in the block or before it.
    """
    settings = settings or settings_here()
    with (
        answering(settings.redis_url, otherwise) as store,
        Client(settings, redis_client=store) as client,
    ):
        yield CliConnection(client, store)
