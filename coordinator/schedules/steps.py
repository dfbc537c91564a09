"""The steps that a decision about a schedule can take, and the ticks that a step covers. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from types import MappingProxyType

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Run, RunSuccess
from unstuck.coordinator.model.tick import tick_text, utc
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick, ticks
from unstuck.coordinator.spec.problems import counted
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.tasks.spec.fields import STORED

MAX_COUNTED = 10_000  # ticks of one skip: more are not counted
CLOCKS_DIFFER = 60.0  # seconds by which the clock of a publisher may differ from that of Redis

Published = Mapping[str, tuple[int, float]]
"""Dataset → the newest version that a job has published, and its time."""
NOTHING: Published = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LogSeen:
    """Packages of a schedule in the warehouse log, which its record may lack after a rollback.

    Attributes:
        since: the first tick for which the log was searched.
        runs: tick → its published run.
        noted: ticks of ``runs`` that are recorded as done.
    """

    since: float
    runs: Mapping[float, RunSuccess]
    noted: Collection[float] = ()


NOT_READ = LogSeen(inf, {})
EMPTY_LOG = LogSeen(-inf, {})


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The end of a run; ``job_state`` is None if its job is not stored any more."""

    run: Run
    job_state: RunSeen | None


@dataclass(frozen=True, slots=True)
class Submit:
    """The submit of a run.

    Attributes:
        versions: versions of the followed datasets, by name.
        more: whether the run reads input that the previous run left.
    """

    run: Run
    versions: Mapping[str, int] | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Ticks without a run, with the reason."""

    code: str
    text: str
    first: float
    last: float
    count: int

    @property
    def summary(self) -> str:
        """The ticks in words: ``12 ticks skipped, 2026-11-27T03:10:00Z to …: why``."""
        many = counted(self.count, "tick")
        if self.count > MAX_COUNTED:
            many = f"more than {MAX_COUNTED:,} ticks"
        span = tick_text(self.first)
        if self.count > 1:
            span += f" to {tick_text(self.last)}"
        return f"{many} skipped, {span}: {self.text}"


@dataclass(frozen=True, slots=True)
class Stands:
    """A tick that is done, not skipped, because its package is in the warehouse log.

    Attributes:
        noted: whether the tick is recorded as done.
    """

    run: RunSuccess
    noted: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """A new version of a dataset, which starts the delay of the next run.

    Later versions do not extend the delay.

    Attributes:
        at: when that version was published.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until the time ``until``, or for an event if ``until`` is None."""

    code: str
    text: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """A halt: the schedule cannot continue by itself."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a schedule without a tick left."""


Step = RunEnded | Submit | Skip | Stands | Noticed | Wait | Halt | Finish


@lru_cache(1024)
def policy_of(text: str) -> ScheduleSpec:
    """Return the policy of a record."""
    return ScheduleSpec.model_validate_json(text, context=STORED)


def passed(policy: ScheduleSpec, after: float, to: float) -> tuple[float, float, int] | None:
    """Return the first and last tick after ``after``, up to ``to``, and their number; or None."""
    first = next_tick(policy, utc(after))
    if first is None or first.timestamp() > to:
        return None
    last = previous_tick(policy, utc(to) + datetime.timedelta(microseconds=1)) or first
    count = 0
    for count, _ in enumerate(ticks(policy, utc(after), utc(to)), 1):
        if count > MAX_COUNTED:
            break
    return first.timestamp(), last.timestamp(), count
