"""Requests to the store and its answers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import Status


class CommitAnswer(StrEnum):
    APPLIED = "APPLIED"
    CONFLICT = "CONFLICT"  # another commit came after the load
    GUARDED = "GUARDED"  # a conclusion from absence no longer holds
    MISSING = "MISSING"


class EndAnswer(StrEnum):
    RELEASED = "RELEASED"
    AGAIN = "AGAIN"  # another pass met the lock busy: decide once more
    LOST = "LOST"  # the lock belongs to another pass by now


class BeginAnswer(StrEnum):
    LOCKED = "LOCKED"
    BUSY = "BUSY"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class Begun:
    """How a pass over a job began. Times are seconds by the clock of Redis."""

    answer: BeginAnswer
    now: float
    due_seen: str = ""
    alive_at: float = 0.0
    grace_until: float = 0.0
    ended: bool = False  # the job had ended, and this release can read it, if that was read too
    commit: str | None = None  # of the job, if it was read too
    attempts: Mapping[str, str | None] | None = None  # by group, as stored, if they were read too

    def takeover(self, sweep_every: float) -> bool:
        """May a lapsed lease be believed? Only while the sweep is alive and no grace runs (rule 7)."""
        return self.now > self.grace_until and 0 <= self.now - self.alive_at <= 3 * sweep_every


@dataclass(frozen=True, slots=True)
class Submission:
    """A job about to be stored. ``id`` is made before the first try."""

    job: JobRecord
    plans: Mapping[str, str]
    params: Mapping[str, Any]
    fingerprint: str


class KeyTaken(Exception):
    """The key belongs to a job with another spec."""


class VacuumSince(Exception):
    """A vacuum that does not know of the job may remove a version that the job would read."""


class NotEnded(Exception):
    """The job that was to be retried has not ended badly."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status
