"""The registry of processes: runners and coordinators say here what they are and what they do, for
people to read.

A runner's watchdog writes for its runner, a coordinator writes for itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal, cast

import redis
from pydantic import Field, TypeAdapter, ValidationError, computed_field

from unstuck.tasks.identity import RunsOn
from unstuck.tasks.json_fields import OptionalTime, Time
from unstuck.tasks.protocol.keys import Keys

log = logging.getLogger(__name__)
FORGOTTEN = 3600.0  # seconds of silence after which a process is shown no more
COORDINATOR_SILENCE = 10.0  # seconds; one that is well notes itself about once a second


@dataclass(frozen=True, slots=True)
class WarehouseSeen:
    """The warehouse that a process was set to, as the process saw it last
    (``tasks.warehouse.probe``).

    Attributes:
        uri: its address; None if the process was set to none.
        id: empty if there is no warehouse; None if that is not known, and ``trouble`` says why, if
            anything does.
        looked_at: when the process looked, by the clock of Redis; None if it did not.
    """

    uri: str | None = None
    id: str | None = None
    trouble: str = ""
    looked_at: OptionalTime = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """The fields that every process writes. Times are seconds by the clock of Redis.

    Attributes:
        queues: those that the process listens to.
        seen: when it said this.
        silent: ``seen`` is too long ago; for the reader to set.
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    seen: Time
    silent: bool = False
    warehouse: WarehouseSeen = field(default_factory=WarehouseSeen)
    runs_on: RunsOn = field(default_factory=RunsOn)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatus(_Status):
    """One runner.

    Attributes:
        worker_pid: of the Celery worker above it.
        code: packages whose steps it has run, each with a digest of its source; without one, it has
            not said.
        unfit: why it takes no Spark work, since its host cannot run it; empty if it does.
        taken_at: when it last took a wake-up from the broker, whatever came of it; None: it never
            did.
        claimed_at: its last claim; None if it never claimed anything.
        job, group, attempt: what it runs; None if it is idle. ``step`` as the step was last called.
        idle_since: when it last had nothing to do and was free to take more; None if it runs
            something, or if its worker was told to stop.
    """

    kind: Literal["runner"] = "runner"
    worker_pid: int
    code: dict[str, str] = field(default_factory=dict)
    unfit: str = ""
    taken_at: OptionalTime = None
    claimed_at: OptionalTime = None
    job: str | None = None
    group: str | None = None
    attempt: int | None = None
    step: str | None = None
    idle_since: OptionalTime = None

    @property
    def worked_at(self) -> float | None:
        """When it last took a wake-up or an attempt; None: it never did."""
        return max(filter(None, (self.taken_at, self.claimed_at)), default=None)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def since(self) -> OptionalTime:
        """Since when it runs what it runs; None if it is idle."""
        return None if self.job is None else self.claimed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus(_Status):
    """One coordinator.

    Attributes:
        read_at: when it last read a worker's report; None: it never did.
        swept_at: when its last sweep ended; None: it never swept.
        oldest_since: queue → since when its oldest message has lain there, as far as this
            coordinator has seen.
        targets: the targets of notices that it knows.
    """

    kind: Literal["coordinator"] = "coordinator"
    read_at: OptionalTime = None
    swept_at: OptionalTime = None
    oldest_since: dict[str, Time] = field(default_factory=dict)
    targets: tuple[str, ...] = ()


ProcessStatus = RunnerStatus | CoordinatorStatus
_STATUS: TypeAdapter[ProcessStatus] = TypeAdapter(
    Annotated[ProcessStatus, Field(discriminator="kind")]
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

    def note(self, describe: Callable[[float], ProcessStatus]) -> None:
        """Write what ``describe`` makes of the present time of Redis; it may raise what Redis
        raises.
        """
        try:
            status = describe(self._now())
            self._client.hset(self._key, status.id, json.dumps(asdict(status)))
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

    def read(self) -> list[ProcessStatus]:
        """All that are not forgotten. Raises: redis.RedisError."""
        return [
            status
            for line in cast(list[str], self._client.hvals(self._key))
            if (status := status_of(line)) is not None
        ]

    def runners(self) -> list[RunnerStatus]:
        """The runners among them. Raises: redis.RedisError."""
        return [status for status in self.read() if isinstance(status, RunnerStatus)]

    def targets(self) -> set[str] | None:
        """The targets of notices that coordinators know which are heard of; None: none is. Raises:
        redis.RedisError.
        """
        now = self._now()
        coordinators = [status for status in self.read() if isinstance(status, CoordinatorStatus)]
        heard_of = [
            coordinator
            for coordinator in coordinators
            if now - coordinator.seen <= COORDINATOR_SILENCE
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
            silent = [
                name
                for name, line in lines.items()
                if (status := status_of(line)) is None or status.seen <= long_ago
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


def status_of(line: str) -> ProcessStatus | None:
    """The record of a process; None if it cannot be read."""
    try:
        return _STATUS.validate_json(line)
    except ValidationError:
        return None
