"""A schedule as users see it: the documented fields of its record. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.model.facts import facts_of
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Quiet,
    Run,
    RunFailure,
    RunSuccess,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.schedules.schedule_commands import ScheduleCommanded
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """One schedule. Times are seconds since the epoch; 0: not yet.

    Attributes:
        spec: the job spec that it repeats, as JSON; ``policy``: its part ``schedule``; ``trigger``:
            that in words.
        intent: what the user last asked for; ``intent_at`` when, ``intent_by`` who, ``intent_why``
            why.
        since: when it came into its status.
        made_at: from when on its ticks count; ``set_at``: when its spec was set last, and
            ``set_by`` whom.
        last_tick: the newest that was decided upon.
        runs: those that go on, or are about to be submitted; ``retries``: the next tries of those
            that have failed.
        quiet: the ticks since its last run at which nothing new lay there.
        failures: runs that failed in a row; ``first_error`` and ``last_error`` are of these.
        halted: why it cannot go on by itself; ``trouble``: why a run could not be submitted yet.
        backfill: the last one that was given; its runs are not among ``runs``.
        problems: since when each stands that somebody was told of, by its condition; ``backfill``:
            that is HALTED.
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
    runs: tuple[Run, ...]
    retries: tuple[Run, ...]
    quiet: Quiet | None
    failures: int
    first_error: RunFailure | None
    last_error: RunFailure | None
    last_success: RunSuccess | None
    halted: Reason | None
    trouble: Reason | None
    backfill: Backfill | None
    problems: Mapping[str, float]

    @property
    def going_on(self) -> tuple[Run, ...]:
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
        )


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """How a command ended: DONE, ALREADY or REFUSED, with the schedule and a sentence for people.

    Attributes:
        warnings: of `set`: parts of the spec without effect, such as a parameter that nothing uses.
    """

    answer: Answer
    schedule: ScheduleFacts
    text: str
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, judged: ScheduleCommanded) -> ScheduleResult:
        return cls(judged.answer, ScheduleFacts.of(judged.record), judged.text)


def _trigger(policy_text: str) -> str:
    """Describe the trigger: ``every 10s``, ``30 2 * * * Europe/Berlin``."""
    policy = json.loads(policy_text)
    if policy.get("cron"):
        return f"{policy['cron']} {policy['zone']}"
    if policy.get("every"):
        every = policy["every"]
        return f"every {every}" if isinstance(every, str) else f"every {every:g}s"
    if after := policy.get("after"):
        names = after if isinstance(after, list) else next(iter(after.values()))
        return f"after {', '.join(names)}"
    return "by hand"
