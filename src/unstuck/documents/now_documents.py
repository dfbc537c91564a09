"""The documents of ``now``: problems, running jobs, and ended jobs."""

from __future__ import annotations

from collections.abc import Mapping

from unstuck.client.now import MAX_ROWS_SHOWN, EndedJobs, Snapshot
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import ProblemCode, Severity
from unstuck.documents.document import Document, Time, Word
from unstuck.documents.job_documents import ListedJobDocument


class AcknowledgementDocument(Document):
    """Who knows of a problem, and why it stays."""

    by: str
    reason: str
    at: Time


class InstallationProblemDocument(Document):
    """A problem.

    ``job`` is null if it concerns no single job, ``acknowledged`` if nobody acknowledged it as it
    is now.
    """

    id: str
    code: ProblemCode
    kind: str
    name: str
    text: str
    since: Time
    remedy: Word
    severity: Severity
    job: Word
    acknowledged: AcknowledgementDocument | None


class EndedDocument(Document):
    """The jobs of one name that ended in the last day: the one that ended last, and the number by
    status.
    """

    name: str
    job: str
    status: Status
    ended_at: Time
    counts: dict[Status, int]

    @classmethod
    def of_ended(cls, ended: EndedJobs) -> EndedDocument:
        return cls.of(ended.job, job=ended.job.id, counts=ended.counts)


class NowDocument(Document):
    """Problems, the worst first; the newest running jobs without a problem; ended jobs, the last
    first.
    """

    at: Time
    problems: list[InstallationProblemDocument]
    running: list[ListedJobDocument]
    ended: list[EndedDocument]

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, waits: Mapping[str, str]) -> NowDocument:
        """``snapshot``: explained; ``waits``: the line of ``why`` by job id."""
        return cls(
            at=snapshot.at,
            problems=[
                InstallationProblemDocument.model_validate(each) for each in snapshot.problems
            ],
            running=[
                ListedJobDocument.of_line(job, waits.get(job.id, "")) for job in snapshot.others
            ],
            ended=[EndedDocument.of_ended(each) for each in snapshot.ended[:MAX_ROWS_SHOWN]],
        )
