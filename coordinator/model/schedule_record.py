"""The record of a schedule, its status, and every legal move from one status to another.

A schedule repeats a job spec; each of its runs is an ordinary job. Only ``derive`` computes the
status. The intent of the user is separate, and only commands change it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, computed_field

from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import IllegalMove
from unstuck.coordinator.model.stored import stored_fields
from unstuck.coordinator.model.tick import BY_HAND, tick_text, utc
from unstuck.tasks.json_fields import DEFERRED, OptionalTime, Time, Word

Redo = Literal["none", "failed", "all"]
MAX_UNRESOLVED = 1000  # ticks of one backfill that failed for good and wait for a person
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


class ScheduleStatus(StrEnum):
    """The status of a schedule. Derived, never set by hand."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    PAUSED = "PAUSED"
    HALTED = "HALTED"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"

    @property
    def terminal(self) -> bool:
        return self in (ScheduleStatus.STOPPED, ScheduleStatus.FINISHED)


class ScheduleIntent(StrEnum):
    """The user's intent for a schedule. Only user commands change it."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: a job for a tick, or one that a user started. Times are Unix seconds; 0: not yet.

    Attributes:
        tick: its nominal time; for a manual run, when it was requested.
        number: number of the run within its tick, starting at 1.
        job: id of its job; empty until it is submitted.
        at: when it was decided.
        by: who requested it; empty if the clock did.
        by_hand: whether a user started it, without a tick.
        params: parameter values of a manual run.
        backfill: id of the backfill that added it; empty for other runs.
        redo: id of the backfill that ran a done tick again, also in retries; empty without one.
        retry_of: id of the failed job whose finished work it reuses.
        after: when that job ended.
        failures: in a backfill, failed runs of this tick since a user requested the tick.
        trouble: why it could not be submitted yet.
        tries: number of failed submits.
        next_at: when it is submitted, or tried again.
        final: for a failed run, why no retry can succeed.
        resumed: for such a run in a backfill, whether a user resumed it, so that it starts when a
            place is free.
    """

    tick: Time
    number: int = 1
    job: Word = ""
    at: Time = 0.0
    by: Word = ""
    by_hand: bool = False
    params: dict[str, Any] = field(default_factory=dict, hash=False)
    backfill: Word = ""
    redo: Word = ""
    retry_of: Word = ""
    after: Time = 0.0
    failures: int = 0
    trouble: Reason | None = None
    tries: int = 0
    next_at: Time = 0.0
    final: Reason | None = None
    resumed: bool = False

    def key(self, schedule: str) -> str:
        """Return the key of its job: submitting a tick twice is one job."""
        key = f"{schedule}@{tick_text(self.tick)}"
        if self.by_hand:
            return f"{key}/{BY_HAND}"
        return f"{key}/{self.number}" if self.number > 1 else key

    def package_id(self, schedule: str) -> str:
        """Return the id of its package, which all runs of a tick share.

        A done tick that a user runs again gets a new package.
        """
        if self.by_hand:
            return self.key(schedule)
        tick = f"{schedule}@{tick_text(self.tick)}"
        return f"{tick}/{self.redo}" if self.redo else tick

    def job_id(self, schedule: str) -> str:
        """Return the id of its job, derived from its key.

        So a store that was rolled back creates the same job again. A done tick that runs again gets
        a new id, because ``redo`` is part of the key.
        """
        named = f"{self.key(schedule)} {self.redo}" if self.redo else self.key(schedule)
        number = int.from_bytes(hashlib.sha256(named.encode()).digest())
        word = ""
        while len(word) < 12:
            number, letter = divmod(number, len(_LETTERS))
            word += _LETTERS[letter]
        return f"{utc(self.tick):%Y%m%dT%H%M%S}-{word}"


@dataclass(frozen=True, slots=True)
class Quiet:
    """Consecutive ticks without a run, because no data had arrived.

    Attributes:
        first: the first of these ticks.
        last: the last of these ticks.
        count: number of these ticks.
        looked_at: when a coordinator last checked for data.
    """

    first: Time
    last: Time
    count: int
    looked_at: Time


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The failure of a run.

    Attributes:
        job: id of its job, which has the log.
        tick: tick of the run.
        at: when it failed.
        code: code of the error.
        text: the error in words.
    """

    job: str
    tick: Time
    at: Time
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class RunSuccess:
    """The last run that FINISHED.

    Attributes:
        job: id of its job.
        tick: tick of the run.
        at: when it ended.
        version: published version of the warehouse; 0 if there was nothing to publish.
        rows: published rows by dataset.
        left: number of arrived files and offsets of its streams beyond the limit of one run.
    """

    job: str
    tick: Time
    at: Time
    version: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    left: int = 0


@dataclass(frozen=True, slots=True)
class Backfill:
    """A range of past ticks that a user requested. Times are seconds since the epoch; 0 if not yet.

    Attributes:
        first: the first tick of the range.
        last: the last tick of the range.
        total: number of ticks in the range.
        at: when it was requested.
        by: who requested it.
        next: the tick that runs next; None if all have run.
        policy: trigger of the schedule when the backfill was requested, which determines its ticks.
        in_order: whether each tick builds on the one before, so that one runs at a time and none is
            skipped.
        reads: version at which the first tick reads the dataset that the runs extend; None for the
            newest.
        parallel: maximum number of active runs.
        redo: which ticks that had a run before run again: ``none``, the ``failed`` or ``all``.
        backwards: whether it starts with the newest tick.
        passed: number of ticks before ``next``, in the order of the backfill.
        left: number of these ticks that had failed earlier and were not run again.
        runs: runs that are active, about to be submitted, or failed for good (``final``) and wait
            for a user.
        last_error: error of the last run that failed.
        paused: whether a person paused it.
        paused_by: who paused it.
        halted: why it is FAILED.
        canceled: whether a person canceled it.
        ended_at: when it ended.
    """

    first: Time
    last: Time
    total: int
    at: Time
    by: str
    next: OptionalTime
    policy: Annotated[str, Field(exclude=True)]
    in_order: bool = False
    reads: int | None = None
    parallel: int = 1
    redo: Redo = "none"
    backwards: bool = False
    passed: int = 0
    left: int = 0
    runs: tuple[Run, ...] = ()
    last_error: RunFailure | None = None
    paused: bool = False
    paused_by: Word = ""
    halted: Reason | None = None
    canceled: bool = False
    ended_at: Time = 0.0

    @property
    def over(self) -> bool:
        """It has ended."""
        return self.ended_at > 0

    @property
    def goes_on(self) -> bool:
        """Whether it may start runs."""
        return not (self.paused or self.halted or self.canceled or self.over)

    @property
    def id(self) -> str:
        """The id of this backfill within its schedule: the time of its request."""
        return tick_text(self.at)

    @property
    def active(self) -> tuple[Run, ...]:
        """Runs that are active, or about to be submitted."""
        return tuple(run for run in self.runs if run.final is None)

    @property
    def resumed(self) -> tuple[Run, ...]:
        """Resumed runs of ticks that failed for good, which start when a place is free."""
        return tuple(run for run in self.runs if run.final is not None and run.resumed)

    @property
    def failed(self) -> tuple[Run, ...]:
        """Runs of ticks that failed for good and wait for a user."""
        return tuple(run for run in self.runs if run.final is not None and not run.resumed)

    @property
    def retries(self) -> tuple[Run, ...]:
        """The runs of ticks that failed before and are neither done nor skipped."""
        return tuple(run for run in self.runs if run.retry_of)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> str:
        """RUNNING, PAUSED, FAILED, CANCELING, CANCELED or DONE."""
        if self.canceled:
            return "CANCELED" if self.over else "CANCELING"
        if self.over:
            return "DONE"
        if self.halted:
            return "FAILED"
        return "PAUSED" if self.paused else "RUNNING"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def done(self) -> int:
        """Number of ticks that are done or skipped."""
        return self.passed - len(self.runs) - self.left

    @computed_field  # type: ignore[prop-decorator]
    @property
    def progress(self) -> str:
        """The progress, in words."""
        failed = [tick_text(run.tick) for run in self.failed]
        more = ", …" if len(failed) > 3 else ""
        parts = [f"{len(failed):,} failed ({', '.join(failed[:3])}{more})"] if failed else []
        parts += [f"{self.left:,} had failed before and are left as they are"] if self.left else []
        return ", ".join([f"{self.done:,} of {self.total:,} ticks are done", *parts])


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """The record of a schedule, as stored.

    Attributes:
        commit: uuid of the last commit; the compare-and-set of every commit.
        spec: the job spec that it repeats, as canonical JSON; ``policy``: its section ``schedule``.
        since: when it entered its status.
        cursor: the last decided tick. It moves back only by a user's command after a clock that was
            ahead; ``decided_to`` is its position before that, up to which ticks may already have
            runs.
        busy_from, busy_until: the last period with active runs; ``overlap`` decides about its
            ticks.
        runs: active runs, and runs about to be submitted.
        followed: followed dataset → the version for which it last ran.
        new_at: when the first version without a run was published; the delay of ``jitter`` starts
            then.
        quiet: ticks since its last run for which no new data had arrived.
        more_at: when its last run ended, if that run left input for another run, which then starts
            at once.
        requests: runs that users requested and that are not decided yet.
        retries: the next tries of failed runs.
        failures: number of consecutive failed runs; only a success or a resume resets it.
        first_error, last_error: errors of these failures.
        halted: why it cannot continue by itself.
        over: whether no tick is left.
        builds_on: the dataset that it both reads and publishes, or ``sequential: true``; empty if
            its runs are independent.
        take_over: whether its runs become the owners of their datasets, until one of them has
            published.
        made_at: start of its first ticks; no run is expected before.
        alerts: problems of which targets were notified, by condition.
        backfill: the last backfill; its runs are not among ``runs``.
    """

    __pydantic_config__ = DEFERRED

    name: str
    commit: str
    spec: str
    policy: str
    warehouse: str
    status: ScheduleStatus = ScheduleStatus.WAITING
    intent: ScheduleIntent = ScheduleIntent.RUN
    since: float = 0.0
    set_at: float = 0.0
    set_by: str = ""
    intent_at: float = 0.0
    intent_by: str = ""
    intent_why: str = ""
    cursor: float = 0.0
    decided_to: float = 0.0
    busy_from: float = 0.0
    busy_until: float = 0.0
    runs: tuple[Run, ...] = ()
    followed: dict[str, int] = field(default_factory=dict)
    new_at: float = 0.0
    quiet: Quiet | None = None
    more_at: float = 0.0
    requests: tuple[Run, ...] = ()
    retries: tuple[Run, ...] = ()
    failures: int = 0
    first_error: RunFailure | None = None
    last_error: RunFailure | None = None
    last_success: RunSuccess | None = None
    halted: Reason | None = None
    over: bool = False
    builds_on: str = ""
    backfill: Backfill | None = None
    take_over: bool = False
    made_at: float = 0.0
    alerts: dict[str, Alert] = field(default_factory=dict)

    @property
    def going_on(self) -> tuple[Run, ...]:
        """All runs that are active, or about to be submitted."""
        return (*self.runs, *(self.backfill.active if self.backfill is not None else ()))

    @property
    def follows(self) -> list[str]:
        """The datasets whose new versions start a run."""
        after = json.loads(self.policy).get("after") or []
        if isinstance(after, dict):
            after = after.get("any_of") or after["all_of"]
        return list(after)

    @property
    def clocked(self) -> bool:
        """Whether the clock makes ticks for it."""
        policy = json.loads(self.policy)
        return bool(policy.get("cron") or policy.get("every"))

    @property
    def trouble(self) -> Reason | None:
        """Why a run could not be submitted yet."""
        return next((run.trouble for run in self.runs if run.trouble), None)

    @property
    def problems(self) -> dict[str, float]:
        """Start of each open problem by condition, including that of a HALTED backfill."""
        open_alerts = {
            condition: alert.since for condition, alert in self.alerts.items() if not alert.over
        }
        fill = self.open_backfill
        if fill is None or fill.halted is None:
            return open_alerts
        return open_alerts | {"backfill": fill.at}

    @property
    def open_backfill(self) -> Backfill | None:
        """The backfill that has not ended; None if there is none."""
        return self.backfill if self.backfill is not None and not self.backfill.over else None

    @property
    def ordered_backfill(self) -> Backfill | None:
        """The open backfill whose runs must not overlap with other runs; None if there is none."""
        fill = self.open_backfill
        return fill if fill is not None and (self.builds_on or fill.in_order) else None

    def to_json(self) -> str:
        """Return compact JSON without defaults, and without the spec, which is a separate field."""
        values = stored_fields(self)
        del values["spec"], values["commit"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, commit: str, spec: str) -> ScheduleRecord:
        """Read a record. Fields of a later release are dropped."""
        return _RECORD.validate_python({**json.loads(text), "commit": commit, "spec": spec})


_RECORD: TypeAdapter[ScheduleRecord] = TypeAdapter(ScheduleRecord)


def derive(record: ScheduleRecord) -> ScheduleStatus:
    """Return the status of a schedule."""
    if record.intent is ScheduleIntent.STOP:
        return ScheduleStatus.STOPPED
    if record.over:
        return ScheduleStatus.FINISHED
    if record.intent is ScheduleIntent.PAUSE:
        return ScheduleStatus.PAUSED
    if record.halted:
        return ScheduleStatus.HALTED
    if record.retries or record.trouble or _tries_by_tick(record):
        return ScheduleStatus.RETRYING
    return ScheduleStatus.RUNNING if any(run.job for run in record.runs) else ScheduleStatus.WAITING


def _tries_by_tick(record: ScheduleRecord) -> bool:
    """Return whether the next run of a schedule is a try after a failure.

    After a retry that a person canceled, only the next tick tries again, if there is one.
    """
    return record.failures > 0 and bool(record.runs or record.clocked)


_W = ScheduleStatus
_GOES_ON = (_W.WAITING, _W.RUNNING, _W.RETRYING)
_OPEN = tuple(status for status in ScheduleStatus if not status.terminal)
# From each of these, to which, and why. A later row says more about a move of an earlier one.
_MOVES: tuple[tuple[Collection[ScheduleStatus], Collection[ScheduleStatus], str], ...] = (
    ((_W.WAITING,), (_W.RUNNING,), "a tick has come, or a user requested a run"),
    ((_W.RUNNING,), (_W.WAITING,), "its run has ended well, or a user ended it"),
    (
        (_W.WAITING, _W.RUNNING),
        (_W.RETRYING,),
        "its run failed, or could not be submitted, and a retry may help",
    ),
    (
        (_W.RETRYING,),
        (_W.WAITING, _W.RUNNING),
        "a run has ended well, or could be submitted after all",
    ),
    (
        (_W.RETRYING,),
        (_W.WAITING,),
        "a run has ended well or was submitted after all, or a user canceled the retry",
    ),
    (_GOES_ON, (_W.HALTED,), "a retry would not help, or none is left"),
    ((_W.HALTED,), _GOES_ON, "the user resumed it, requested a run, or set it again"),
    ((*_GOES_ON, _W.HALTED), (_W.PAUSED,), "the user paused it; an active run may end"),
    ((_W.PAUSED,), (*_GOES_ON, _W.HALTED), "the user resumed it"),
    (_OPEN, (_W.STOPPED,), "the user stopped it; an active run may end"),
    (_GOES_ON, (_W.FINISHED,), "no tick is left: `until` has come"),
)
SCHEDULE_MOVES = {
    (old, new): why for olds, news, why in _MOVES for old in _W if old in olds for new in news
}


def check_schedule_status(name: str, old: ScheduleStatus, new: ScheduleStatus) -> None:
    """Check that a move is legal. Raises: IllegalMove."""
    if old is not new and (old, new) not in SCHEDULE_MOVES:
        raise IllegalMove(f"schedule {name}", old, new)
