"""Answers that hold several public types, or a part of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unstuck.client.now import MAX_ROWS_SHOWN, EndedJobs, Snapshot
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.outbox import SentNotice, WaitingNotice
from unstuck.coordinator.problems.problem import Problem
from unstuck.coordinator.store.answers import Submitted
from unstuck.doctor.finding import Finding, Level
from unstuck.read_model.job import JobRows
from unstuck.tasks.json_fields import Time, Word


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """The answer to a submit.

    Attributes:
        id: of the job.
        name: of the job.
        new: whether this submit stored the job; false if its key had stored the same job before.
        status: of the job when it was submitted.
        retried: id of the job that this one retries.
        warnings: parts of the spec without effect, such as a parameter that nothing uses.
    """

    id: str
    name: str
    new: bool
    status: Status
    retried: Word
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, submitted: Submitted, name: str) -> SubmitAnswer:
        return cls(
            submitted.id,
            name,
            submitted.new,
            submitted.found_as,
            submitted.retried,
            submitted.warnings,
        )


@dataclass(frozen=True, slots=True)
class NowAnswer:
    """The installation at one moment.

    Attributes:
        at: that moment.
        problems: the worst first, acknowledged ones last.
        running: the newest running jobs without a problem.
        ended: jobs that ended in the last day, by name, the last end first.
    """

    at: Time
    problems: Sequence[Problem]
    running: JobRows
    ended: Sequence[EndedJobs]

    @classmethod
    def of(cls, snapshot: Snapshot, waits: Mapping[str, str]) -> NowAnswer:
        """Return the answer of an explained ``snapshot``; ``waits``: line of ``why`` by job id."""
        running = [replace(job, why=waits.get(job.id, "")) for job in snapshot.others]
        return cls(snapshot.at, snapshot.problems, running, snapshot.ended[:MAX_ROWS_SHOWN])


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of `doctor`.

    Attributes:
        redis: address of the Redis, without its password.
        problems: number of findings that are problems.
        warnings: number of findings that are warnings.
        findings: in the order of the checks.
    """

    redis: str
    problems: int
    warnings: int
    findings: Sequence[Finding]

    @classmethod
    def of(cls, redis: str, findings: Sequence[Finding]) -> Examination:
        counts = Counter(finding.level for finding in findings)
        return cls(redis, counts[Level.PROBLEM], counts[Level.WARNING], findings)


@dataclass(frozen=True, slots=True)
class NoticeList:
    """The notices of an installation.

    Attributes:
        waiting: those that wait, the longest first.
        sent: those that were sent, the newest first.
    """

    waiting: Sequence[WaitingNotice]
    sent: Sequence[SentNotice]
