"""The documents of ``now``: what is not well, what goes on, and what has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unstuck.client.now import MOST, Ended, Seen, Trouble
from unstuck.coordinator.model.status import Status
from unstuck.documents.document import Document, Time, Word
from unstuck.documents.job_documents import ListedJobDocument


class TroubleDocument(Document):
    """One thing that is not well. ``job`` is its id, null where it is about no single job."""

    kind: str
    name: str
    status: str
    text: str
    since: Time
    job: Word

    @classmethod
    def of_trouble(cls, one: Trouble, waits: Mapping[str, str]) -> TroubleDocument:
        job = "" if one.job is None else one.job.id
        return cls.of(one, text=one.text or waits.get(job, ""), job=job)


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
    def of_ended(cls, one: Ended) -> EndedDocument:
        return cls.of(one.job, job=one.job.id, counts=one.counts)


class NowDocument(Document):
    """Things that are not well, the worst first; the newest jobs that go on beside that; what
    ended, the last first.
    """

    at: Time
    not_well: list[TroubleDocument]
    goes_on: list[ListedJobDocument]
    ended: list[EndedDocument]

    @classmethod
    def of_seen(
        cls, seen: Seen, found: Sequence[Trouble], ended: Sequence[Ended], waits: Mapping[str, str]
    ) -> NowDocument:
        return cls(
            at=seen.at,
            not_well=[TroubleDocument.of_trouble(one, waits) for one in found],
            goes_on=[
                ListedJobDocument.of_line(job, waits.get(job.id, "")) for job in seen.beside(found)
            ],
            ended=[EndedDocument.of_ended(one) for one in ended[:MOST]],
        )
