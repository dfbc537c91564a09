"""A schedule as users see it, and its ticks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Quiet,
    Run,
    RunFailure,
    RunSuccess,
    ScheduleIntent,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import TickOutcome
from unstuck.coordinator.schedules.schedule_state import ScheduleState
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.tick_params import tick_params
from unstuck.coordinator.spec.schedule_spec import zone_of
from unstuck.read_model.event import EventInfo
from unstuck.read_model.job import JobRows
from unstuck.read_model.record_fields import from_record
from unstuck.tasks.json_fields import DEFERRED, OptionalTime, Time, Word


@dataclass(frozen=True, slots=True)
class NextTick:
    """A tick that has not come yet.

    Attributes:
        tick: when it comes.
        params: values that it gives to parameters of its job.
    """

    tick: Time
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TickInfo:
    """A tick that has come.

    Attributes:
        tick: its instant.
        params: values that it gives to parameters of its job.
        job: id of its current run; empty if there is none.
        outcome: of the tick.
    """

    tick: Time
    params: Mapping[str, str]
    job: Word
    outcome: TickOutcome


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """One schedule. Times are seconds since the epoch; 0 if not yet.

    The fields after ``backlog`` are only set if the schedule was read alone: a list does not have
    them.

    Attributes:
        name: of the schedule, and of the job that it repeats.
        status: where it stands.
        trigger: what starts its runs, in words.
        zone: time zone of its ticks.
        warehouse: in which its runs publish.
        intent: last command of a user.
        intent_at: when that command was given.
        intent_by: who gave it.
        intent_why: the reason that was given with it.
        since: when it entered its status.
        made_at: from when on its ticks count.
        set_at: when its spec was set last.
        set_by: who set it.
        waits: what it waits for.
        due_at: when a coordinator looks at it next; null if it has ended.
        last_tick: the newest tick that was decided.
        next: its next ticks; none while it does not run by itself.
        runs: runs that are active, or about to be submitted.
        retries: next tries of runs that failed.
        quiet: ticks since its last run at which no data had arrived.
        failures: runs that failed in a row.
        first_error: of these failures.
        last_error: of these failures.
        last_success: the last run that FINISHED.
        halted: why it is HALTED until a person acts.
        trouble: why a run could not be submitted yet.
        backfill: the last one that was requested.
        backlog: unread input of its streams when a coordinator looked last; null if none looked.
        jobs: jobs of its last runs, the newest first.
        events: its last events, the newest last.
    """

    __pydantic_config__ = DEFERRED

    name: str
    status: ScheduleStatus
    trigger: str
    zone: str
    warehouse: str
    intent: ScheduleIntent
    intent_at: Time
    intent_by: Word
    intent_why: Word
    since: Time
    made_at: Time
    set_at: Time
    set_by: Word
    waits: str
    at: Annotated[float, Field(exclude=True)] = field(compare=False, repr=False)
    due_at: OptionalTime = field(compare=False, repr=False)
    last_tick: Time
    next: tuple[NextTick, ...]
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
    backlog: Backlog | None
    jobs: JobRows = ()
    events: tuple[EventInfo, ...] = ()

    @property
    def going_on(self) -> tuple[Run, ...]:
        """Active runs, those of its backfill among them."""
        return (*self.runs, *(self.backfill.active if self.backfill is not None else ()))

    @property
    def time_zone(self) -> tzinfo:
        """The zone in which people read its ticks, whatever zone the host has."""
        return zone_of(self.zone)

    def on_its_clock(self, tick: float | str) -> str:
        """Return a tick by the clock of the schedule's zone, with the offset from UTC.

        Args:
            tick: seconds since the epoch, or text in ISO 8601.
        """
        if isinstance(tick, str):
            at = datetime.fromisoformat(tick).astimezone(self.time_zone)
        else:
            at = datetime.fromtimestamp(tick, self.time_zone)
        return at.isoformat(sep=" ", timespec="seconds")

    @classmethod
    def of(cls, state: ScheduleState, ticks: int = 1, **others: Any) -> ScheduleInfo:
        """Return the schedule in ``state``, with as many next ``ticks``.

        ``others``: the fields that a list does not have.
        """
        record = state.schedule
        policy, following = policy_of(record.policy), state.next_ticks(ticks)
        params = json.loads(record.spec).get("params", {}) if following else {}
        return from_record(
            cls,
            record,
            trigger=_trigger(record.policy),
            zone=policy.zone or "UTC",
            waits=state.waits,
            at=state.at,
            due_at=state.due,
            last_tick=record.cursor,
            next=tuple(
                NextTick(tick.timestamp(), tick_params(params, policy, tick)) for tick in following
            ),
            backlog=state.backlog,
            **others,
        )


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


_SCHEDULE: TypeAdapter[ScheduleInfo] = TypeAdapter(ScheduleInfo)


def json_of_schedules(schedules: Sequence[ScheduleInfo]) -> list[dict[str, Any]]:
    """Return the JSON of a list of schedules: without the fields that only one alone has."""
    return [_SCHEDULE.dump_python(each, exclude={"jobs", "events"}) for each in schedules]
