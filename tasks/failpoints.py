"""Failpoints: the named moments at which a test can make a process die, freeze or fail.

Between two steps of the protocol a process may be lost. Unarmed, a failpoint costs a call and one
comparison; no setting arms a process, only code of a test does (docs/internals/failpoints.md).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """A named moment of the protocol."""

    def __new__(cls, value: str, sentence: str) -> Point:
        point = str.__new__(cls, value)
        point._value_ = value
        point.sentence = sentence
        return point

    sentence: str

    # In a runner, in the order of an attempt.
    AFTER_CLAIM = (
        "after-claim",
        "the store has given the attempt to this runner, which has not heard of it",
    )
    AFTER_BATCH = (
        "after-batch",
        "a batch of a stream is staged; Spark has not committed it to its checkpoint",
    )
    AFTER_OUTPUT = "after-output", "a step has staged an output and goes on"
    BEFORE_MARKER = (
        "before-marker",
        "all steps are done and all files staged; nothing vouches for them yet",
    )
    AFTER_MARKER = "after-marker", "the marker stands, if anything was made; there is no outcome"
    BEFORE_FINISH = "before-finish", "the outcome is known to the runner alone"
    AFTER_FINISH = (
        "after-finish",
        "outcome and report are in the store; who sent them has not heard of it",
    )

    # In a watchdog.
    BEFORE_LOSS_REPORT = "before-loss-report", "the runner is dead, and its watchdog alone knows"

    # In a coordinator, in the order of a pass.
    AFTER_READ = "after-read", "reports were read from the stream; none was applied or acked"
    AFTER_LOCK = "after-lock", "the job is locked and its due pushed away; nothing was read of it"
    BEFORE_COMMIT = "before-commit", "it is decided what to write; nothing is written"
    AFTER_COMMIT = (
        "after-commit",
        "the store has answered the commit; the coordinator has not heard of it",
    )
    BEFORE_WAKE_UPS = (
        "before-wake-ups",
        "groups stand QUEUED, and the lock is free; no wake-up was sent",
    )
    AFTER_WAKE_UPS = "after-wake-ups", "the wake-ups are with the broker"
    BEFORE_PACKAGE = "before-package", "the job is publishing; no marker was read"
    BEFORE_ENTRY = "before-entry", "the entry of the warehouse log is made up; its number is free"
    AFTER_ENTRY = (
        "after-entry",
        "the entry stands and readers see it; its author has not heard of it",
    )
    BEFORE_TABLE = (
        "before-table",
        "the entry stands; the table that it names has no commit of it",
    )
    AFTER_TABLE = (
        "after-table",
        "the table has its commit; nothing says that all tables of the entry have theirs",
    )
    AFTER_PUBLISH = (
        "after-publish",
        "the publisher knows what became of the package; the record does not",
    )

    # In a coordinator that decides a schedule; ``job`` is its name.
    AFTER_TAKE = (
        "after-take",
        "the schedule is left to this coordinator for a term; nothing was read of it",
    )
    BEFORE_SUBMIT = (
        "before-submit",
        "a schedule has decided upon a run; its job is not in the store",
    )

    # In the process that submits or gives a command.
    AFTER_SUBMIT = "after-submit", "the job is in the store; its author has not heard of it"
    AFTER_COMMAND = "after-command", "the command is on the record; its author has not heard of it"


Act = Callable[[Point, str], None]
_act: Act | None = None


def reach(point: Point, job: str) -> None:
    """Report that this process has reached ``point`` in its work on ``job``.

    Returns at once unless a test has armed the process.
    """
    if _act is not None:
        _act(point, job)


def arm(act: Act | None) -> Act | None:
    """Call ``act`` at every point, in the thread that reaches it; None disarms.

    Returns the previous ``act``.
    """
    global _act
    before, _act = _act, act
    return before
