"""The connection of a command to Redis.

A command answers, or reports that Redis does not answer, within five seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import redis

from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.unreachable import answering
from unstuck.read_model.job_list import JobList
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings

if TYPE_CHECKING:
    from unstuck.client.client import Client


@dataclass(frozen=True)
class CliConnection:
    """The connection of a command to Redis, and what reads and commands jobs over it."""

    settings: Settings
    redis: redis.Redis

    @cached_property
    def client(self) -> Client:
        from unstuck.client.client import Client  # a list needs no commands, specs and warehouses

        return Client(self.settings, redis_client=self.redis)

    @property
    def jobs(self) -> JobList:
        """The lists of jobs, as `Client.jobs` returns them."""
        return JobList(Queries(self.redis, Keys(self.settings.prefix)))


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
    with answering(settings.redis_url, otherwise) as store:
        yield CliConnection(settings, store)
