"""A schedule as users see it: the documented fields of its record, and nothing that fences or stores (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from unstuck.coordinator.commands.job_commands import Answer
from unstuck.coordinator.model.facts import facts_of
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Quiet,
    Redo,
    Run,
    RunFailure,
    RunSuccess,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.schedules.decide_schedule import policy_of
from unstuck.coordinator.schedules.schedule_commands import ScheduleCommanded
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec


@dataclass(frozen=True, slots=True)
class RunView:
    """One run of a schedule that goes on, or is to be tried. Times are seconds since the epoch; 0: not yet.

    Attributes:
        tick: the nominal time; of a run that a person asked for, when it was asked for.
        number: of the try, from 1 on.
        job: its id; empty until it is submitted.
        at: when it was decided upon.
        by: who asked for it; empty if its tick did.
        retry_of: the job that failed before, whose finished work it takes over.
        trouble: why it could not be submitted yet; ``tries`` how often that was so.
        next_at: when it is submitted, or tried again.
        final: of a run that has failed: why no further try mends it.
    """

    tick: float
    number: int
    job: str
    at: float
    by: str
    retry_of: str
    trouble: Reason | None
    tries: int
    next_at: float
    final: Reason | None


@dataclass(frozen=True, slots=True)
class BackfillView:
    """Ticks of the past that a person asked for. Times are seconds since the epoch; 0: not yet.

    Attributes:
        status: in one word; ``progress``: how far it is, in words; ``over``: it has ended.
        first, last: the range, its ends included; ``total``: how many ticks are in it.
        at, by: when it was given, and by whom.
        next: the tick that is run next; None if all have been.
        parallel: how many runs may go on at once.
        redo: of ticks that had a run before: ``none``, the ``failed``, or ``all`` are run again.
        runs: those that go on, or are about to be submitted.
        had: ticks that had a run before, and were left as they are.
        well, failed: ticks whose run ended well, or did not.
        failures: runs that failed in a row; ``next_at``: when the next one may begin.
        paused_by: who paused it.
    """

    status: str
    progress: str
    over: bool
    first: float
    last: float
    total: int
    at: float
    by: str
    next: float | None
    parallel: int
    redo: Redo
    backwards: bool
    runs: tuple[RunView, ...]
    had: int
    well: int
    failed: int
    failures: int
    last_error: RunFailure | None
    next_at: float
    paused_by: str
    halted: Reason | None
    ended_at: float

    @classmethod
    def of(cls, record: Backfill) -> BackfillView:
        return facts_of(cls, record, runs=_runs(record.runs), progress=record.told)


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """One schedule. Times are seconds since the epoch; 0: not yet.

    Attributes:
        spec: the job spec that it repeats, as JSON; ``policy``: its part ``schedule``; ``trigger``: that in words.
        intent: what the user last asked for; ``intent_at`` when, ``intent_by`` who, ``intent_why`` why.
        since: when it came into its status.
        made_at: from when on its ticks count; ``set_at``: when its spec was set last, and ``set_by`` whom.
        last_tick: the newest that was decided upon.
        runs: those that go on, or are about to be submitted; ``retries``: the next tries of those that have failed.
        quiet: the ticks since its last run at which nothing new lay there.
        failures: runs that failed in a row; ``first_error`` and ``last_error`` are of these.
        halted: why it cannot go on by itself; ``trouble``: why a run could not be submitted yet.
        backfill: the last one that was given; its runs are not among ``runs``.
        problems: since when each stands that somebody was told of, by its condition; ``backfill``: that is HALTED.
    """

    name: str
    status: ScheduleStatus
    trigger: str
    policy: ScheduleSpec
    spec: str
    warehouse: str
    intent: ScheduleIntent
    intent_at: float
    intent_by: str
    intent_why: str
    since: float
    made_at: float
    set_at: float
    set_by: str
    last_tick: float
    runs: tuple[RunView, ...]
    retries: tuple[RunView, ...]
    quiet: Quiet | None
    failures: int
    first_error: RunFailure | None
    last_error: RunFailure | None
    last_success: RunSuccess | None
    halted: Reason | None
    trouble: Reason | None
    backfill: BackfillView | None
    problems: Mapping[str, float]

    @property
    def going_on(self) -> tuple[RunView, ...]:
        """All runs that go on, or are about to be submitted, those of its backfill among them."""
        return (*self.runs, *(self.backfill.runs if self.backfill is not None else ()))

    @classmethod
    def of(cls, record: ScheduleRecord) -> ScheduleFacts:
        return facts_of(
            cls,
            record,
            policy=policy_of(record.policy),
            trigger=_trigger(record.policy),
            last_tick=record.cursor,
            runs=_runs(record.runs),
            retries=_runs(record.retries),
            backfill=None if record.backfill is None else BackfillView.of(record.backfill),
        )


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """How a command ended: DONE, ALREADY or REFUSED, the schedule after it, and a sentence for people."""

    answer: Answer
    schedule: ScheduleFacts
    text: str

    @classmethod
    def of(cls, judged: ScheduleCommanded) -> ScheduleResult:
        return cls(judged.answer, ScheduleFacts.of(judged.record), judged.text)


def _runs(records: tuple[Run, ...]) -> tuple[RunView, ...]:
    return tuple(facts_of(RunView, run) for run in records)


def _trigger(policy_text: str) -> str:
    """When it runs, in words: ``every 10s``, ``30 2 * * * Europe/Berlin``."""
    policy = json.loads(policy_text)
    if policy.get("cron"):
        return f"{policy['cron']} {policy['zone']}"
    if policy.get("every"):
        every = policy["every"]
        return f"every {every if isinstance(every, str) else f'{every:g}s'}"
    after = policy.get("after")
    if after:
        names = after if isinstance(after, list) else next(iter(after.values()))
        return f"after {', '.join(names)}"
    return "by hand"
