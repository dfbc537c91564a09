"""The state of a schedule at one moment, for explanations and for problems. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.next_step import next_step
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.steps import NOTHING, Published, Skip, Step, Wait, policy_of
from unstuck.coordinator.schedules.trigger import ticks

_FAR = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule at one moment.

    Attributes:
        at: that moment, in seconds by the clock of Redis; ``due``: when a coordinator looks at the
            schedule next.
        waits: what it waits for, by the rules that decide it.
        backlog: unread input of its streams when a coordinator last checked; None if none did.
    """

    schedule: ScheduleRecord
    at: float
    due: float | None
    waits: str
    backlog: Backlog | None = None

    def next_ticks(self, count: int) -> Sequence[datetime.datetime]:
        """Return its next ticks, in UTC; none while it does not run by itself."""
        status = self.schedule.status
        if status.terminal or status in (ScheduleStatus.PAUSED, ScheduleStatus.HALTED):
            return []
        after = datetime.datetime.fromtimestamp(max(self.at, self.schedule.cursor), datetime.UTC)
        return list(islice(ticks(policy_of(self.schedule.policy), after, _FAR), count))


def state_of(
    record: ScheduleRecord,
    now: float,
    due: float | None,
    published: Published = NOTHING,
    jobs: Mapping[str, Status] = MappingProxyType({}),
    backlog: Backlog | None = None,
) -> ScheduleState:
    """Return the state of ``record`` at ``now``.

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
    return ScheduleState(record, now, due, waits, backlog)


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
