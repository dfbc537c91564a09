"""Register processes in Redis: runners and coordinators with their state, for people.

A runner's watchdog writes for its runner, a coordinator writes for itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, cast

import redis
from pydantic import Field, TypeAdapter, ValidationError

from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import (
    CoordinatorInfo,
    ProcessInfo,
    RunnerInfo,
)

log = logging.getLogger(__name__)
FORGOTTEN = 3600.0  # seconds of silence after which a process is shown no more
COORDINATOR_SILENCE = 10.0  # seconds; one that is well notes itself about once a second


_STATUS: TypeAdapter[ProcessInfo] = TypeAdapter(
    Annotated[ProcessInfo, Field(discriminator="kind")], config=DEFERRED
)


class ProcessRegistry:
    """The registry on one Redis. ``client`` must decode responses.

    Only ``read`` raises errors of Redis.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.processes
        self._polled = keys.polled
        self._failed = False

    def note(self, describe: Callable[[float], ProcessInfo]) -> None:
        """Write the result of ``describe`` for the current Redis time. Raises errors of Redis."""
        try:
            status = describe(self._now())
            written = {name: value for name, value in asdict(status).items() if name != "silent"}
            self._client.hset(self._key, status.id, json.dumps(written))
            self._failed = False
        except redis.RedisError as error:
            if not self._failed:
                log.warning("this process could not be shown in the fleet; it goes on: %s", error)
            self._failed = True

    def leave(self, name: str) -> None:
        """Remove the process with the id ``name``, which ends in good order."""
        try:
            self._client.hdel(self._key, name)
            self._client.hdel(self._polled, name)
        except redis.RedisError as error:
            log.warning("%s could not be taken out of the fleet list: %s", name, error)

    def read(self) -> list[ProcessInfo]:
        """All that are not forgotten. Raises: redis.RedisError."""
        statuses = map(status_of, cast(list[str], self._client.hvals(self._key)))
        return [status for status in statuses if status is not None]

    def runners(self) -> list[RunnerInfo]:
        """The runners among them. Raises: redis.RedisError."""
        return [status for status in self.read() if isinstance(status, RunnerInfo)]

    def targets(self) -> set[str] | None:
        """Return the notice targets that live coordinators know; None without one.

        Raises: redis.RedisError.
        """
        now = self._now()
        coordinators = [status for status in self.read() if isinstance(status, CoordinatorInfo)]
        heard_of = [
            coordinator
            for coordinator in coordinators
            if now - coordinator.heard_at <= COORDINATOR_SILENCE
        ]
        if not heard_of:
            return None
        return {target for coordinator in heard_of for target in coordinator.targets}

    def forget_silent(self) -> int:
        """Drop those that were silent for an hour, and lines that cannot be read. Returns how many.

        A process that is dropped by mistake appears again with its next note.
        """
        try:
            long_ago = self._now() - FORGOTTEN
            lines = cast(dict[str, str], self._client.hgetall(self._key))
            statuses = {name: status_of(line) for name, line in lines.items()}
            silent = [
                name
                for name, status in statuses.items()
                if status is None or status.heard_at <= long_ago
            ]
            if not silent:
                return 0
            self._client.hdel(self._polled, *silent)
            return self._client.hdel(self._key, *silent)
        except redis.RedisError as error:
            log.warning("the list of the fleet could not be cleared of the silent: %s", error)
            return 0

    def _now(self) -> float:
        seconds, micros = self._client.time()
        return float(seconds + micros / 1e6)


def status_of(line: str) -> ProcessInfo | None:
    """The record of a process; None if it cannot be read."""
    try:
        return _STATUS.validate_json(line)
    except ValidationError:
        return None
