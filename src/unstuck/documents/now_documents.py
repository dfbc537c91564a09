"""The documents of ``now``: problems, running jobs, and ended jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unstuck.client.now import MAX_ROWS_SHOWN, EndedJobs, Snapshot
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Problem
from unstuck.documents.document import Document, Time
from unstuck.read_model.job import JobInfo


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
    problems: list[Problem]
    running: list[JobInfo]
    ended: list[EndedDocument]

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, waits: Mapping[str, str]) -> NowDocument:
        """``snapshot``: explained; ``waits``: the line of ``why`` by job id."""
        return cls(
            at=snapshot.at,
            problems=list(snapshot.problems),
            running=[replace(job, why=waits.get(job.id, "")) for job in snapshot.others],
            ended=[EndedDocument.of_ended(each) for each in snapshot.ended[:MAX_ROWS_SHOWN]],
        )
