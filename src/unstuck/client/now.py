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
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.store.pool_store import PoolView
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
    job: ListedJob | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The jobs of one name that ended lately: the newest of them, and how many ended how."""

    job: ListedJob
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is looked at, at the time ``at``."""

    at: float
    halted: Sequence[ListedJob]
    failed: Sequence[ListedJob]
    retrying: Sequence[ListedJob]
    going_on: Sequence[ListedJob]
    newest: Sequence[ListedJob]
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
        fleet = client.fleet(wanted=False)
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

    def beside(self, found: Sequence[Trouble]) -> list[ListedJob]:
        """The jobs that go on and are not among those whose sentence is asked for ``found``."""
        told = {one.job.id for one in found if one.job is not None and not one.text}
        return [job for job in self.going_on[:MOST] if job.id not in told]


def troubles(seen: Seen) -> list[Trouble]:
    """All that is not well, the worst first."""
    return [
        *_of_fleet(seen),
        *(_of_job(job, job.submitted_at) for job in seen.halted[:MOST]),
        *(_of_job(job, job.ended_at) for job in seen.failed[:MOST]),
        *_of_schedules(seen),
        *(_of_late(one, seen) for one in seen.late),
        *(
            _of_job(job, job.started_at or job.submitted_at)
            for job in [*seen.retrying[:MOST], *_waiting(seen)]
        ),
    ]


def _waiting(seen: Seen) -> list[ListedJob]:
    """Jobs that wait long for their first worker."""
    pending = (
        job for job in seen.going_on[:MOST] if job.status is Status.PENDING and not job.started_at
    )
    return [job for job in pending if seen.at - job.submitted_at > WAITS_LONG]


def _of_job(job: ListedJob, since: float) -> Trouble:
    text = job.reason.text if job.status is Status.FAILED and job.reason is not None else ""
    return Trouble("job", job.name, job.status, text, since, job)


def _of_late(late: LateJob, seen: Seen) -> Trouble:
    job = next((one for one in seen.newest if one.name == late.name and not one.schedule), None)
    if job is None:
        stands = f"no job of this name is among the newest {LATELY}"
    else:
        stands = f"job {job.id}, the newest, is {job.status}"
    return Trouble("job", late.name, "LATE", f"{late.text}; {stands}", late.since)


def _of_schedules(seen: Seen) -> list[Trouble]:
    found = [_schedule(name, "FAILED", text) for name, text in seen.unreadable.items()]
    for view in seen.schedules:
        one, fill, told = view.schedule, view.schedule.backfill, _told(view, seen.at)
        if told is not None and not one.status.terminal:
            found.append(_schedule(one.name, *told))
        if fill is not None and fill.halted is not None and not fill.over:
            found.append(
                _schedule(
                    one.name,
                    fill.status,
                    f"its backfill: {fill.progress}; {fill.halted.text}",
                    fill.at,
                )
            )
    return found


def _told(view: ScheduleView, at: float) -> tuple[str, str, float] | None:
    """The status, the sentence and the beginning of what is worst about a schedule; None if it is
    well.
    """
    one, backlog = view.schedule, view.backlog
    late = next(
        (since for condition, since in one.problems.items() if condition.startswith("late")), 0.0
    )
    if one.halted is not None:
        return one.status, one.halted.text, one.since
    if one.failures and one.last_error is not None:
        return one.status, f"{one.failures:,} in a row failed: {one.last_error.text}", one.since
    if one.trouble is not None:
        return one.status, one.trouble.text, one.since
    if late:
        return "LATE", f"no run has ended well by its deadline; {view.waits}", late
    if view.due is not None and at - view.due > OVERDUE:
        return "LATE", "no coordinator has decided it, though its time has come", view.due
    well = one.last_success
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


def _of_fleet(seen: Seen) -> list[Trouble]:
    fleet, found = seen.fleet, []
    if not any(not one.silent for one in fleet.coordinators):
        text = (
            "No coordinator is heard of: none runs, or Redis refuses what it writes (`unstuck "
            "doctor` says which). Until then nothing is decided, and nothing is published."
        )
        found.append(Trouble("fleet", "coordinators", "SILENT", text, fleet.swept_at or 0.0))
    for queue, text in unread_messages(fleet, seen.stalled_after).items():
        found.append(Trouble("queue", queue, "STALLED", f"{text}."))
    for queue, text in nobody_takes(fleet).items():
        waits = next(
            (one for one in fleet.queues if one.name == queue and one.oldest_since is not None),
            None,
        )
        if waits is not None and seen.at - (waits.oldest_since or seen.at) > WAITS_LONG:
            found.append(
                Trouble(
                    "queue", queue, "WAITING", f"Work waits: {text}.", waits.oldest_since or 0.0
                )
            )
    for host, why in unfit_runners(fleet).items():
        found.append(Trouble("host", host, "UNFIT", f"It takes no Spark work: {why}"))
    if seen.dead_letters:
        verb = "dead letter waits" if seen.dead_letters == 1 else "dead letters wait"
        text = f"{seen.dead_letters:,} {verb} for a person: see `unstuck dead list`."
        found.append(Trouble("fleet", "dead letters", "WAITING", text))
    for pool in seen.pools:
        if pool.waiting and not pool.slots:
            waiting = count_of(pool.waiting, "group")
            text = (
                f"It has 0 slots, and work waits for one ({waiting}): `unstuck pool set "
                f"{pool.name} N`."
            )
            found.append(Trouble("pool", pool.name, "WAITING", text))
    return found


def ended_lately(seen: Seen) -> list[Ended]:
    """The jobs of the last day that have ended, folded by name, the last end first."""
    by_name: dict[str, list[ListedJob]] = {}
    for job in seen.newest:
        if job.status.terminal and seen.at - job.ended_at < DAY:
            by_name.setdefault(job.name, []).append(job)
    folded = [
        Ended(max(same, key=lambda job: job.ended_at), Counter(job.status for job in same))
        for same in by_name.values()
    ]
    return sorted(folded, key=lambda one: -one.job.ended_at)


def waits_now(client: Client, seen: Seen, found: Sequence[Trouble]) -> dict[str, str]:
    """The line of ``why`` for the jobs of ``found`` that have no sentence yet, then for those that
    go on.

    Raises: Unreachable.
    """
    asked = [one.job for one in found if one.job is not None and not one.text]
    return waits_of(client, [*asked, *seen.beside(found)], EXPLAIN_WITHIN)
