"""What a runner and a coordinator say about themselves, for people to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import computed_field

from unstuck.tasks.identity import RunsOn
from unstuck.tasks.json_fields import OptionalTime, Time


@dataclass(frozen=True, slots=True)
class WarehouseSeen:
    """The configured warehouse of a process at its last look.

    Attributes:
        uri: its address; None if the process has none.
        id: empty if there is no warehouse; None if unknown.
        trouble: why the id is unknown.
        looked_at: when the process looked, by the clock of Redis; None if it did not.
    """

    uri: str | None = None
    id: str | None = None
    trouble: str = ""
    looked_at: OptionalTime = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """The fields that every process writes. Times are seconds by the clock of Redis.

    Attributes:
        queues: those that the process listens to.
        heard_at: when it wrote this status.
        silent: ``heard_at`` is too long ago; for the reader to set.
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    heard_at: Time
    silent: bool = False
    warehouse: WarehouseSeen = field(default_factory=WarehouseSeen)
    runs_on: RunsOn = field(default_factory=RunsOn)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo(_Process):
    """One runner. Times are seconds by the clock of Redis.

    Attributes:
        kind: always ``runner``.
        worker_pid: of the Celery worker above it.
        code: packages whose steps it has run, each with a digest of its source; empty if unknown.
        unfit: why it takes no Spark work, since its host cannot run it; empty if it does.
        taken_at: when it last took a wake-up from the broker; None if it never did.
        claimed_at: its last claim; None if it never claimed anything.
        job: id of the job that it runs; None if it is idle.
        group: that it runs; None if it is idle.
        attempt: number of the attempt that it runs; None if it is idle.
        step: that was called last; None if it is idle.
        idle_since: when it last had nothing to do and was free to take more; None if it is busy, or
            its worker was told to stop.
        id: of the process.
        host: name of its host.
        pid: of the process.
        queues: that the process listens to.
        heard_at: when it wrote this.
        silent: whether ``heard_at`` is too long ago; set by the reader.
        warehouse: its configured warehouse.
        runs_on: its versions.
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
class CoordinatorInfo(_Process):
    """One coordinator. Times are seconds by the clock of Redis.

    Attributes:
        kind: always ``coordinator``.
        read_at: when it last read a worker's report; None if it never did.
        swept_at: when its last sweep ended; None if it never swept.
        oldest_since: by queue, since when its oldest message has waited, as far as this coordinator
            knows.
        targets: the targets of notices that it can send to.
        id: of the process.
        host: name of its host.
        pid: of the process.
        queues: that the process listens to.
        heard_at: when it wrote this.
        silent: whether ``heard_at`` is too long ago; set by the reader.
        warehouse: its configured warehouse.
        runs_on: its versions.
    """

    kind: Literal["coordinator"] = "coordinator"
    read_at: OptionalTime = None
    swept_at: OptionalTime = None
    oldest_since: dict[str, Time] = field(default_factory=dict)
    targets: tuple[str, ...] = ()


ProcessInfo = RunnerInfo | CoordinatorInfo
