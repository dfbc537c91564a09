"""The state of a schedule for people and programs. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import TickOutcome
from unstuck.coordinator.schedules.next_step import next_step
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_facts import ScheduleFacts
from unstuck.coordinator.schedules.steps import NOTHING, Published, Skip, Step, Wait
from unstuck.coordinator.schedules.tick_params import tick_params
from unstuck.coordinator.schedules.trigger import ticks

_FAR = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class BackfillTick:
    """One tick of a backfill.

    Attributes:
        tick: in UTC.
        params: the values that it gives to parameters of its job.
        had: the job of its current run; empty if there is none.
        outcome: of the tick.
    """

    tick: datetime.datetime
    params: Mapping[str, str]
    had: str = ""
    outcome: TickOutcome = TickOutcome.MISSING


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule at one moment.

    Attributes:
        at: that moment, in seconds by the clock of Redis; ``due``: when a coordinator looks at the
            schedule next.
        waits: what it waits for, by the deciding rules.
        backlog: what its streams had unread when a coordinator looked last; None if none has
            looked.
    """

    schedule: ScheduleFacts
    at: float
    due: float | None
    waits: str
    backlog: Backlog | None = None

    @property
    def zone(self) -> datetime.tzinfo:
        """The zone in which people read its ticks, whatever the host has."""
        return self.schedule.policy.time_zone

    def next_ticks(self, count: int) -> Sequence[datetime.datetime]:
        """Return its next ticks, in UTC; none while it does not run by itself."""
        status = self.schedule.status
        if status.terminal or status in (ScheduleStatus.PAUSED, ScheduleStatus.HALTED):
            return []
        after = datetime.datetime.fromtimestamp(max(self.at, self.schedule.last_tick), datetime.UTC)
        return list(islice(ticks(self.schedule.policy, after, _FAR), count))

    def on_its_clock(self, tick: datetime.datetime | str) -> str:
        """Return a tick by the clock of the schedule's zone, with the offset from UTC.

        Args:
            tick: an aware time, or text in ISO 8601.
        """
        at = datetime.datetime.fromisoformat(tick) if isinstance(tick, str) else tick
        return at.astimezone(self.zone).isoformat(sep=" ", timespec="seconds")

    def params_at(self, tick: datetime.datetime) -> dict[str, str]:
        """Return the values that a tick gives to the parameters of its job."""
        return tick_params(self.spec().get("params", {}), self.schedule.policy, tick)

    def spec(self) -> dict[str, Any]:
        """Return the job spec that it repeats."""
        return dict(json.loads(self.schedule.spec))


def view_of(
    record: ScheduleRecord,
    now: float,
    due: float | None,
    published: Published = NOTHING,
    jobs: Mapping[str, Status] = MappingProxyType({}),
    backlog: Backlog | None = None,
) -> ScheduleView:
    """Return the view of ``record`` at ``now``.

    Args:
        jobs: statuses of the jobs of its runs; a missing job is taken as running.
    """
    statuses = {run.job: jobs.get(run.job, Status.RUNNING) for run in record.runs}
    # The end of a run is shown once a coordinator has recorded it.
    going_on = {
        job: RunSeen(Status.RUNNING if status.terminal else status)
        for job, status in statuses.items()
    }
    step = next_step(record, going_on, now, published)
    waits = _waits(step)
    idle = record.status in (ScheduleStatus.WAITING, ScheduleStatus.RETRYING) and not record.runs
    if record.failures and idle and not record.retries:
        waits = f"its last run failed, and is not tried again; {waits}"
    return ScheduleView(ScheduleFacts.of(record), now, due, waits, backlog)


def _waits(step: Step) -> str:
    match step:
        case Wait():
            return step.text
        case Skip():
            return (
                f"{step.summary}; a coordinator reads first in the warehouse log whether they had "
                "a run"
            )
    return "a coordinator decides it next"
