"""The documents of ``now``: what is not well, what goes on, and what has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unstuck.client.now import MOST, EndedJobs, Seen, Trouble
from unstuck.coordinator.model.status import Status
from unstuck.documents.document import Document, Time, Word
from unstuck.read_model.job import JobInfo


class TroubleDocument(Document):
    """One thing that is not well. ``job`` is its id, null where it is about no single job."""

    kind: str
    name: str
    status: str
    text: str
    since: Time
    job: Word

    @classmethod
    def of_trouble(cls, trouble: Trouble, waits: Mapping[str, str]) -> TroubleDocument:
        job = "" if trouble.job is None else trouble.job.id
        return cls.of(trouble, text=trouble.text or waits.get(job, ""), job=job)


class EndedDocument(Document):
    """The jobs of one name that ended in the last day: the one that ended last, and how many ended
    how.
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
    """Things that are not well, the worst first; the newest jobs that go on beside that; what
    ended, the last first.
    """

    at: Time
    not_well: list[TroubleDocument]
    goes_on: list[JobInfo]
    ended: list[EndedDocument]

    @classmethod
    def of_seen(
        cls,
        snapshot: Seen,
        reported: Sequence[Trouble],
        ended: Sequence[EndedJobs],
        waits: Mapping[str, str],
    ) -> NowDocument:
        return cls(
            at=snapshot.at,
            not_well=[TroubleDocument.of_trouble(trouble, waits) for trouble in reported],
            goes_on=[replace(job, why=waits.get(job.id, "")) for job in snapshot.beside(reported)],
            ended=[EndedDocument.of_ended(ended_jobs) for ended_jobs in ended[:MOST]],
        )
