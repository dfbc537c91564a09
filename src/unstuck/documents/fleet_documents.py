"""The documents of the fleet: its processes, queues and pools, its notices and dead letters, its
examination.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.store.dead_letter_store import unreadable
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.doctor.finding import Finding, Level
from unstuck.documents.document import AnswerDocument, Document, Time, Word
from unstuck.tasks.identity import RunsOn


class WarehouseSeenDocument(Document):
    """The warehouse of a process, as the process saw it last."""

    uri: str | None
    id: str | None
    trouble: str
    looked_at: Time


class ProcessDocument(Document):
    """The fields that every process of the fleet has."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    seen: Time
    silent: bool
    warehouse: WarehouseSeenDocument
    runs_on: RunsOn


class RunnerDocument(ProcessDocument):
    """One runner, and what it runs: null where it is idle."""

    worker_pid: int
    code: dict[str, str]
    unfit: str
    taken_at: Time
    claimed_at: Time
    job: str | None
    group: str | None
    attempt: int | None
    step: str | None
    idle_since: Time
    since: Time


class CoordinatorDocument(ProcessDocument):
    """One coordinator: when it last read a report, and when its last sweep ended."""

    read_at: Time
    swept_at: Time
    targets: tuple[str, ...]


class QueueDocument(Document):
    """One queue: the messages in it, and who listens."""

    name: str
    length: int
    listeners: int
    oldest_since: Time


class StalledDocument(Document):
    """A worker or coordinator that received nothing more, and ended itself."""

    worker: str
    at: Time


class FleetDocument(Document):
    """The processes of the fleet, and the queues between them; silent processes come last."""

    at: Time
    swept_at: Time
    runners: tuple[RunnerDocument, ...]
    coordinators: tuple[CoordinatorDocument, ...]
    queues: tuple[QueueDocument, ...]
    stalled: tuple[StalledDocument, ...]


class PoolDocument(Document):
    """One pool: its slots, how many are in use and by what, and how many groups wait."""

    name: str
    slots: int
    used: int
    waiting: int
    holders: tuple[str, ...]


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
    """A notice that waits for its target; ``said``: what the last try came to."""

    to: str
    since: Time
    next_at: Time
    tries: int
    said: Word
    notice: Notice


class SentNoticeDocument(Document):
    """A notice that was sent, and what the receiver said."""

    to: str
    at: Time
    tries: int
    said: str
    notice: Notice


class NoticesDocument(Document):
    """The notices that wait, the longest first, and those that were sent, the newest first."""

    waiting: list[WaitingNoticeDocument]
    sent: list[SentNoticeDocument]


class DeadLetterDocument(Document):
    """A dead letter. ``deliveries`` is null where that was not recorded; of three kinds, one is not
    null.
    """

    id: str
    at: Time
    reason: str
    entry: Word
    deliveries: int | None
    report: dict[str, Any] | None
    notice: dict[str, Any] | None
    to: Word
    task: dict[str, Any] | None

    @classmethod
    def of_letter(cls, letter: DeadLetter, **more: Any) -> DeadLetterDocument:
        return cls.of(
            letter,
            deliveries=letter.deliveries or None,
            report=None if letter.notice or letter.task else letter.fields,
            notice=letter.fields if letter.notice else None,
            task={"name": letter.task, **letter.fields} if letter.task else None,
            **more,
        )


class WholeDeadLetterDocument(DeadLetterDocument):
    """A dead letter word for word, and why no coordinator of this release can read it."""

    unreadable: Word
    raw: dict[str, Any]

    @classmethod
    def of_whole(cls, letter: DeadLetter) -> DeadLetterDocument:
        return cls.of_letter(letter, unreadable=unreadable(letter))


class DeadLetterAnswerDocument(AnswerDocument):
    """The answer of a command to one dead letter; also REPLAYED or DROPPED."""

    id: str
