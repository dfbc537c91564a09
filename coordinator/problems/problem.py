"""A problem: what is wrong with a job, a schedule or the fleet, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, computed_field

from unstuck.coordinator.model.acknowledgement import Acknowledgement
from unstuck.tasks.json_fields import Time, Word

OPEN = "OPEN"  # the status of a problem that nobody has acknowledged


class ProblemCode(StrEnum):
    """The kind of a problem.

    Attributes:
        subjects: kinds of subjects that may have the problem.
        meaning: a sentence for the reference.
    """

    subjects: str
    meaning: str

    def __new__(cls, value: str, subjects: str, meaning: str) -> Self:
        code = str.__new__(cls, value)
        code._value_, code.subjects, code.meaning = value, subjects, meaning
        return code

    NO_COORDINATOR = "NO_COORDINATOR", "fleet", "No coordinator is alive."
    NO_WORKER = "NO_WORKER", "fleet", "No runner is alive, and a job is open."
    DEAD_LETTERS = "DEAD_LETTERS", "fleet", "Dead letters wait for a person."
    UNSERVED = "UNSERVED", "queue", "Messages wait, and nobody listens."
    UNREAD = (
        "UNREAD",
        "queue",
        "The oldest message waits for `UNSTUCK_STALLED_AFTER` (60 s if that is 0) beside an idle "
        "listener.",
    )
    BUSY = "BUSY", "queue", "Work waits for a minute, and all listeners are busy or unfit."
    UNFIT = "UNFIT", "host", "The host takes no Spark work, since it cannot run Spark."
    NO_SLOTS = "NO_SLOTS", "pool", "Groups wait, and the pool has 0 slots."
    FAILED = (
        "FAILED",
        "job, schedule",
        "The last job of the name failed within a day, or the last run of the schedule failed.",
    )
    BACKFILL_FAILED = "BACKFILL_FAILED", "schedule", "Its backfill waits for a person."
    HALTED = "HALTED", "job, schedule", "It waits for a person."
    RETRYING = "RETRYING", "job, schedule", "It failed, and is tried again."
    WAITING = "WAITING", "job", "It has waited for its first worker for a minute."
    LATE = "LATE", "job, schedule", "No run ended well by the deadline of a rule."
    OVERDUE = "OVERDUE", "schedule", "No coordinator has decided it for a minute."
    BEHIND = "BEHIND", "schedule", "Its streams have had unread input for ten minutes."
    UNREADABLE = "UNREADABLE", "job, schedule", "The stored record is damaged."


class Severity(StrEnum):
    """How bad a problem is."""

    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        code: what is wrong.
        kind: job, schedule, queue, pool, host or fleet.
        name: of the subject; of a job, its name.
        text: what is wrong, as a sentence; empty for a job, which `why` explains.
        since: when it started, in Unix seconds; 0 if unknown.
        remedy: what to do.
        severity: how bad it is.
        job: id of the job; empty if the problem concerns no single job.
        state: a text that changes with the problem, if ``since`` does not.
        acknowledged: acknowledgement of the problem in its present state; None without one.
    """

    code: ProblemCode
    kind: str
    name: str
    text: str = ""
    since: Time = 0.0
    remedy: Word = ""
    severity: Severity = Severity.PROBLEM
    job: Word = ""
    state: Annotated[str, Field(exclude=True)] = ""
    acknowledged: Acknowledgement | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> str:
        """The id of the problem, such as ``schedule/nightly/FAILED``."""
        return f"{self.kind}/{self.job or self.name}/{self.code}"

    @property
    def shown_text(self) -> str:
        """The sentence; for an acknowledged problem, after the user and the reason."""
        if self.acknowledged is None:
            return self.text
        why = f": {self.acknowledged.reason}" if self.acknowledged.reason else ""
        return f"[acknowledged by {self.acknowledged.by}{why}] {self.text}"

    @property
    def version(self) -> str:
        """A text that changes when the problem changes."""
        return self.state or f"{self.since:.0f}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for which a condition may last before it is a problem.

    Attributes:
        stalled: a message waits although a listener is idle.
        overdue: a schedule is due and not decided.
        behind: a file or record is unread.
        waiting: a job or an offer has no worker.
    """

    stalled: float = 60.0
    overdue: float = 60.0
    behind: float = 600.0
    waiting: float = 60.0
