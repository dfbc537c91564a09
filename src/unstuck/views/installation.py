"""Reads the state of an installation in which problems are detected. Read-only and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Limits
from unstuck.coordinator.problems.state import InstallationState
from unstuck.coordinator.schedules.schedule_state import ScheduleState, state_of
from unstuck.coordinator.store.acknowledgement_store import Acknowledgements
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.pool_store import Pools
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.read_model.job_list import JobList
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.views.fleet_view import fleet_of
from unstuck.views.jobs.late_jobs import late_jobs

MAX_PROBLEMS_PER_KIND = 30
FAILED_WITHIN_S = 86400.0
OPEN = tuple(status for status in Status if not status.terminal)


def limits_of(settings: Settings) -> Limits:
    """Return the limits of an installation."""
    return Limits(stalled=settings.stalled_after or Limits().stalled)


def read_state(
    client: redis.Redis, keys: Keys, settings: Settings, *, thorough: bool = False
) -> InstallationState:
    """Read what `detect` needs, at most `MAX_PROBLEMS_PER_KIND` entries of each kind.

    It reads as many more as there are acknowledgements, so these hide no other problem.

    Args:
        client: must decode responses.
        thorough: read all schedules, and each open job for queues to which nobody ever listened.

    Raises: redis.RedisError.
    """
    fleet = fleet_of(client, keys, settings.runner_silence, include_unserved=thorough)
    queries, schedules, limits = Queries(client, keys), ScheduleStore(client, keys), Limits()
    jobs, acknowledged = JobList(queries), Acknowledgements(client, keys).all()
    most = MAX_PROBLEMS_PER_KIND + len(acknowledged)
    names = schedules.names() if thorough else schedules.unwell(limits.overdue, limits.behind, most)
    records, unreadable = schedules.load_all(names)
    failed = [job for job in jobs.failed() if fleet.at - job.ended_at < FAILED_WITHIN_S]
    statuses = [[Status.HALTED], [Status.RETRYING], [Status.PENDING]]
    halted, retrying, pending = (jobs.jobs(status, limit=most) for status in statuses)
    pipe = client.pipeline(transaction=False)
    for status in OPEN:
        pipe.zcard(keys.status(status))
    return InstallationState(
        fleet,
        [*halted, *failed[:most], *retrying, *pending],
        sum(pipe.execute()),
        late_jobs(ExpectedJobsStore(client, keys))[:most],
        schedule_states(schedules, queries, records),
        unreadable,
        Pools(client, keys).all(),
        DeadLetters(client, keys).count(),
        acknowledged,
    )


def schedule_states(
    store: ScheduleStore, queries: Queries, records: Sequence[ScheduleRecord]
) -> list[ScheduleState]:
    """Return ``records`` as they are now. Raises: redis.RedisError."""
    names = [record.name for record in records]
    now, due, backlogs = store.now(), store.due_at(names), store.backlogs(names)
    published = store.published_of([(record.warehouse, record.follows) for record in records])
    runs = [run.job for record in records for run in record.going_on if run.job]
    jobs: dict[str, Status] = {job.id: job.status for job in JobList(queries).of_ids(runs)}
    return [
        state_of(record, now, at, of_inputs, jobs, backlog)
        for record, at, of_inputs, backlog in zip(records, due, published, backlogs, strict=True)
    ]
