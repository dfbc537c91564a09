"""Collects what is not well now, each with its sentence; what goes on; what ended in the last day.
Read-only.

It reads a bounded number of jobs, and one failed job for each name. It explains jobs within a
bounded time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unstuck.client.client import Client
from unstuck.client.waits import waits_of
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.store.pool_store import PoolView
from unstuck.read_model.job import JobInfo
from unstuck.views.fleet_view import FleetView
from unstuck.views.jobs.late_jobs import LateJob
from unstuck.views.queues import nobody_takes, unfit_runners, unread_messages
from unstuck.views.words import count_of

MOST = 30  # lines of one list
LATELY = 500  # jobs, the newest, in which ends are looked for
DAY = 86400.0  # seconds
EXPLAIN_WITHIN = 1.0  # seconds for the reasons of all jobs that are shown
OVERDUE = 60.0  # seconds after which a schedule that nobody has decided is late
BEHIND = 600.0  # seconds for which a file or a record may lie unread
WAITS_LONG = 60.0  # seconds for which a job may wait for its first worker
IN_TROUBLE = (Status.HALTED, Status.RETRYING)
GOES_ON = tuple(status for status in Status if not status.terminal and status not in IN_TROUBLE)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is not well, and its sentence.

    Attributes:
        kind: job, schedule, queue, pool, host or fleet.
        status: in a word; ``since``: seconds since the epoch, 0 if it is not known.
        job: that the sentence of `why` is asked of, if ``text`` is empty.
    """

    kind: str
    name: str
    status: str
    text: str
    since: float = 0.0
    job: JobInfo | None = None


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The jobs of one name that ended lately: the newest of them, and how many ended how."""

    job: JobInfo
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is looked at, at the time ``at``."""

    at: float
    halted: Sequence[JobInfo]
    failed: Sequence[JobInfo]
    retrying: Sequence[JobInfo]
    going_on: Sequence[JobInfo]
    newest: Sequence[JobInfo]
    late: Sequence[LateJob]
    schedules: Sequence[ScheduleView]
    unreadable: Mapping[str, str]
    fleet: FleetView
    stalled_after: float
    dead_letters: int
    pools: Sequence[PoolView]

    @classmethod
    def of(cls, client: Client) -> Seen:
        """Raises: Unreachable."""
        fleet = client.fleet(include_unserved=False)
        schedules, unreadable = client.schedules.unwell(overdue=OVERDUE, behind=BEHIND, most=MOST)
        return cls(
            fleet.at,
            client.jobs(status=[Status.HALTED], limit=MOST + 1),
            [job for job in client.failed_jobs() if fleet.at - job.ended_at < DAY],
            client.jobs(status=[Status.RETRYING], limit=MOST + 1),
            client.jobs(status=GOES_ON, limit=MOST + 1),
            client.jobs(limit=LATELY),
            client.late_jobs()[:MOST],
            schedules,
            unreadable,
            fleet,
            client.settings.stalled_after,
            client.dead_letters.count(),
            client.pools.all(),
        )

    def beside(self, reported: Sequence[Trouble]) -> list[JobInfo]:
        """The jobs that go on and are not among those whose sentence is asked for ``reported``."""
        explained = {
            trouble.job.id for trouble in reported if trouble.job is not None and not trouble.text
        }
        return [job for job in self.going_on[:MOST] if job.id not in explained]


def troubles(snapshot: Seen) -> list[Trouble]:
    """All that is not well, the worst first."""
    return [
        *_of_fleet(snapshot),
        *(_of_job(job, job.submitted_at) for job in snapshot.halted[:MOST]),
        *(_of_job(job, job.ended_at) for job in snapshot.failed[:MOST]),
        *_of_schedules(snapshot),
        *(_of_late(late_job, snapshot) for late_job in snapshot.late),
        *(
            _of_job(job, job.started_at or job.submitted_at)
            for job in [*snapshot.retrying[:MOST], *_waiting(snapshot)]
        ),
    ]


def _waiting(snapshot: Seen) -> list[JobInfo]:
    """Jobs that wait long for their first worker."""
    pending = (
        job
        for job in snapshot.going_on[:MOST]
        if job.status is Status.PENDING and not job.started_at
    )
    return [job for job in pending if snapshot.at - job.submitted_at > WAITS_LONG]


def _of_job(job: JobInfo, since: float) -> Trouble:
    text = job.reason.text if job.status is Status.FAILED and job.reason is not None else ""
    return Trouble("job", job.name, job.status, text, since, job)


def _of_late(late: LateJob, snapshot: Seen) -> Trouble:
    job = next((job for job in snapshot.newest if job.name == late.name and not job.schedule), None)
    if job is None:
        newest = f"no job of this name is among the newest {LATELY}"
    else:
        newest = f"job {job.id}, the newest, is {job.status}"
    return Trouble("job", late.name, "LATE", f"{late.text}; {newest}", late.since)


def _of_schedules(snapshot: Seen) -> list[Trouble]:
    unwell = [_schedule(name, "FAILED", text) for name, text in snapshot.unreadable.items()]
    for view in snapshot.schedules:
        schedule, fill, worst = view.schedule, view.schedule.backfill, _worst_of(view, snapshot.at)
        if worst is not None and not schedule.status.terminal:
            unwell.append(_schedule(schedule.name, *worst))
        if fill is not None and fill.halted is not None and not fill.over:
            unwell.append(
                _schedule(
                    schedule.name,
                    fill.status,
                    f"its backfill: {fill.progress}; {fill.halted.text}",
                    fill.at,
                )
            )
    return unwell


def _worst_of(view: ScheduleView, at: float) -> tuple[str, str, float] | None:
    """The status, the sentence and the beginning of what is worst about a schedule; None if it is
    well.
    """
    schedule, backlog = view.schedule, view.backlog
    late = next(
        (since for condition, since in schedule.problems.items() if condition.startswith("late")),
        0.0,
    )
    if schedule.halted is not None:
        return schedule.status, schedule.halted.text, schedule.since
    if schedule.failures and schedule.last_error is not None:
        return (
            schedule.status,
            f"{schedule.failures:,} in a row failed: {schedule.last_error.text}",
            schedule.since,
        )
    if schedule.trouble is not None:
        return schedule.status, schedule.trouble.text, schedule.since
    if late:
        return "LATE", f"no run has ended well by its deadline; {view.waits}", late
    if view.due is not None and at - view.due > OVERDUE:
        return "LATE", "no coordinator has decided it, though its time has come", view.due
    well = schedule.last_success
    has_read = (
        backlog is not None and well is not None and backlog.at <= well.at and not well.left
    )  # since the look
    if backlog is not None and not has_read and backlog.since and at - backlog.since > BEHIND:
        text = "; ".join(
            f"{name}: {part.told(backlog.at)}" for name, part in backlog.streams.items()
        )
        return "BEHIND", text, backlog.since
    return None


def _schedule(name: str, status: str, text: str, since: float = 0.0) -> Trouble:
    return Trouble("schedule", name, status, text, since)


def _of_fleet(snapshot: Seen) -> list[Trouble]:
    fleet, unwell = snapshot.fleet, []
    if not any(not coordinator.silent for coordinator in fleet.coordinators):
        text = (
            "No coordinator is heard of: none runs, or Redis refuses what it writes (`unstuck "
            "doctor` says which). Until then nothing is decided, and nothing is published."
        )
        unwell.append(Trouble("fleet", "coordinators", "SILENT", text, fleet.swept_at or 0.0))
    for queue, text in unread_messages(fleet, snapshot.stalled_after).items():
        unwell.append(Trouble("queue", queue, "STALLED", f"{text}."))
    for queue, text in nobody_takes(fleet).items():
        waits = next(
            (
                queue_view
                for queue_view in fleet.queues
                if queue_view.name == queue and queue_view.oldest_since is not None
            ),
            None,
        )
        if waits is not None and snapshot.at - (waits.oldest_since or snapshot.at) > WAITS_LONG:
            unwell.append(
                Trouble(
                    "queue", queue, "WAITING", f"Work waits: {text}.", waits.oldest_since or 0.0
                )
            )
    for host, why in unfit_runners(fleet).items():
        unwell.append(Trouble("host", host, "UNFIT", f"It takes no Spark work: {why}"))
    if snapshot.dead_letters:
        verb = "dead letter waits" if snapshot.dead_letters == 1 else "dead letters wait"
        text = f"{snapshot.dead_letters:,} {verb} for a person: see `unstuck dead list`."
        unwell.append(Trouble("fleet", "dead letters", "WAITING", text))
    for pool in snapshot.pools:
        if pool.waiting and not pool.slots:
            waiting = count_of(pool.waiting, "group")
            text = (
                f"It has 0 slots, and work waits for one ({waiting}): `unstuck pool set "
                f"{pool.name} N`."
            )
            unwell.append(Trouble("pool", pool.name, "WAITING", text))
    return unwell


def ended_lately(snapshot: Seen) -> list[EndedJobs]:
    """The jobs of the last day that have ended, folded by name, the last end first."""
    by_name: dict[str, list[JobInfo]] = {}
    for job in snapshot.newest:
        if job.status.terminal and snapshot.at - job.ended_at < DAY:
            by_name.setdefault(job.name, []).append(job)
    folded = [
        EndedJobs(max(same, key=lambda job: job.ended_at), Counter(job.status for job in same))
        for same in by_name.values()
    ]
    return sorted(folded, key=lambda ended: -ended.job.ended_at)


def waits_now(client: Client, snapshot: Seen, reported: Sequence[Trouble]) -> dict[str, str]:
    """Return the line of ``why`` by job id: of the jobs in ``reported`` that have no sentence, then
    of the running jobs.

    Raises: Unreachable.
    """
    unexplained = [
        trouble.job for trouble in reported if trouble.job is not None and not trouble.text
    ]
    return waits_of(client, [*unexplained, *snapshot.beside(reported)], EXPLAIN_WITHIN)
