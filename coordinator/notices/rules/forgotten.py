"""Decides whether a problem has ended that was notified and that Redis has lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import inf

from unstuck.coordinator.model.notice import Alert, Notice, notice_id
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.notices.rules.expected import Expected


class Fate(StrEnum):
    """Whether a lost problem has ended."""

    OPEN = "OPEN"  # or not known yet
    ENDED = "ENDED"  # the notice of its end was committed, or no target waits for it
    FORGOTTEN = "FORGOTTEN"


@dataclass(frozen=True, slots=True)
class Subject:
    """The state in Redis of a job, a schedule or an expected name.

    Attributes:
        alerts: open problems on its records.
        well_at: when it last had no problem, in Unix seconds; 0 if it has one; ``inf`` if it has
            ended.
        status: its status, in one word.
    """

    alerts: Sequence[Alert]
    well_at: float
    status: str

    @classmethod
    def of_jobs(cls, jobs: Sequence[JobRecord]) -> Subject | None:
        """Return the state of the job of a notice, and of the first job of its chain of retries."""
        if not jobs:
            return None
        alerts = [alert for job in jobs for alert in job.alerts.values()]
        ended = all(job.terminal for job in jobs)
        return cls(alerts, inf if ended else 0.0, str(jobs[0].status))

    @classmethod
    def of_schedule(cls, record: ScheduleRecord) -> Subject:
        """Return the state of a schedule: well after a successful run without an open alert."""
        well = 0.0 if record.last_success is None else record.last_success.at
        well = inf if record.status.terminal else well
        unwell = record.problems or record.failures or record.halted
        return cls(list(record.alerts.values()), 0.0 if unwell else well, str(record.status))

    @classmethod
    def of_expected(cls, text: str, deadline: float) -> Subject:
        """Return the state of a name: well if a check at ``deadline`` or later found it in time."""
        expected = Expected.from_json(text)
        judged = max(expected.judged.values(), default=0.0)
        well = judged >= deadline and not expected.late
        return cls(list(expected.alerts.values()), inf if well else 0.0, "IN TIME")


def fate_of(
    target: str, notice: Notice, subject: Subject | None, now: float, retention: float
) -> Fate:
    """Decide whether the problem of ``notice``, of which ``target`` was notified, has ended.

    Args:
        subject: its state in Redis; None if Redis does not have it.
        retention: seconds after which an ended job is removed from Redis.
    """
    expired = now - notice.at > retention
    if subject is None:
        return Fate.ENDED if expired else Fate.FORGOTTEN
    mine = [alert for alert in subject.alerts if target in alert.to]
    if any(not alert.over for alert in mine):
        return Fate.OPEN
    if any(alert.over >= notice.at for alert in mine):
        return Fate.ENDED
    if subject.well_at > notice.at:
        return Fate.FORGOTTEN
    return Fate.ENDED if expired else Fate.OPEN


def end_of(target: str, notice: Notice, subject: Subject | None, now: float) -> Notice:
    """Return the notice of the end of a problem that Redis has forgotten."""
    at = datetime.fromtimestamp(notice.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    status_text = "does not know it" if subject is None else f"shows it as {subject.status}"
    text = (
        f"the problem that was reported at {at} is over: Redis was rolled back since, and "
        f"{status_text}"
    )
    return Notice(
        id=notice_id("forgotten", notice.id),
        to=(target,),
        event="recovered",
        kind=notice.kind,
        name=notice.name,
        job=notice.job,
        problem=notice.problem,
        at=now,
        since=notice.since,
        status="UNKNOWN" if subject is None else subject.status,
        text=text,
    )
