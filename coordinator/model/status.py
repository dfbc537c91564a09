"""Status and state: the words for where a job and a group stand. Which moves are legal stands in ``moves``.

Status is derived in one place (``derive``) from intent, phase and group states; nothing else computes it.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a job stands. Derived, never set by hand."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.STOPPED, Status.CANCELED, Status.FINISHED, Status.FAILED})


class Intent(StrEnum):
    """What the user wants of a job. Written by user commands only."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    CANCEL = "cancel"
    FORCE_STOP = "force_stop"

    @property
    def command(self) -> str:
        """As the user gives it on the command line."""
        return self.value.replace("_", "-")


class GroupState(StrEnum):
    """Where a group stands. A group without a record is WAITING."""

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    CANCELING = "CANCELING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"

    @property
    def terminal(self) -> bool:
        return self in GROUP_TERMINAL


# What listings count as done: a group that was canceled has ended, and nobody did it.
DONE = frozenset({"SUCCEEDED", "FAILED", "SKIPPED"})
GROUP_TERMINAL = frozenset({GroupState.SUCCEEDED, GroupState.FAILED, GroupState.CANCELED, GroupState.SKIPPED})


def derive(
    *, intent: Intent, outcome: Status | None, halted: bool, started: bool, active: bool, recovering: bool
) -> Status:
    """The status of a job.

    Args:
        intent: what the user wants.
        outcome: how the job ended, once it has; final.
        halted: the job cannot go on by itself.
        started: some attempt was claimed at some time.
        active: some attempt is queued, running or being canceled.
        recovering: some group failed recoverably and has not succeeded since.
    """
    if outcome is not None:
        return outcome
    if intent is Intent.PAUSE or (halted and intent is Intent.RUN):
        return Status.PAUSING if active else Status.PAUSED
    if intent is Intent.STOP:
        return Status.STOPPING
    if intent in (Intent.CANCEL, Intent.FORCE_STOP):
        return Status.CANCELING
    if recovering:
        return Status.RETRYING
    return Status.RUNNING if started else Status.PENDING
