"""The documents of notices and of the examination, and the answer about a dead letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unstuck.coordinator.model.notice import Notice
from unstuck.doctor.finding import Finding, Level
from unstuck.documents.document import AnswerDocument, Document, Time, Word


class FindingDocument(Document):
    """One thing that was examined, and what to do about it."""

    code: str
    level: Level
    text: str
    cure: str


class ExaminationDocument(Document):
    """All that `doctor` has found."""

    redis: str
    problems: int
    warnings: int
    findings: list[FindingDocument]

    @classmethod
    def of_findings(cls, redis: str, findings: Sequence[Finding]) -> ExaminationDocument:
        counts = Counter(finding.level for finding in findings)
        summary = {
            "redis": redis,
            "problems": counts[Level.PROBLEM],
            "warnings": counts[Level.WARNING],
        }
        return cls.model_validate({**summary, "findings": findings})


class WaitingNoticeDocument(Document):
    """A notice that waits for its target; ``reply``: the result of the last try."""

    to: str
    since: Time
    next_at: Time
    tries: int
    reply: Word
    notice: Notice


class SentNoticeDocument(Document):
    """A notice that was sent, and the reply of the receiver."""

    to: str
    at: Time
    tries: int
    reply: str
    notice: Notice


class NoticesDocument(Document):
    """The notices that wait, the longest first, and those that were sent, the newest first."""

    waiting: list[WaitingNoticeDocument]
    sent: list[SentNoticeDocument]


class DeadLetterAnswerDocument(AnswerDocument):
    """The answer of a command to one dead letter; also REPLAYED or DROPPED."""

    id: str
