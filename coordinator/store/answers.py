"""The types of requests to the store and of its answers."""

from __future__ import annotations

import datetime
import secrets
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
    """The state at the start of a pass over a job. Times are seconds by the clock of Redis."""

    answer: BeginAnswer
    now: float
    due_seen: str = ""
    alive_at: float = 0.0
    grace_until: float = 0.0
    ended: bool = False  # the job had ended, and this release can read it, if that was read too
    commit: str | None = None  # of the job, if it was read too
    attempts: Mapping[str, str | None] | None = None  # by group, as stored, if they were read too

    def takeover(self, sweep_every: float) -> bool:
        """Return whether lapsed leases count: the sweep is alive and no grace runs (rule 7)."""
        return self.now > self.grace_until and 0 <= self.now - self.alive_at <= 3 * sweep_every


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to store.

    Attributes:
        id: created before the first try.
        expected: its rules ``late``, as JSON.
    """

    job: JobRecord
    plans: Mapping[str, str]
    params: Mapping[str, Any]
    fingerprint: str
    expected: str = ""


class KeyTaken(Exception):
    """The key belongs to a job with another spec.

    Attributes:
        job: id of that job.
    """

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job


class VacuumSince(Exception):
    """A vacuum started meanwhile, and may remove a version that the job would read."""


class ScheduleChanged(Exception):
    """The schedule has changed since it requested the job as its run."""


class NotEnded(Exception):
    """The job to retry is not FAILED, CANCELED or STOPPED."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that is in the store.

    Attributes:
        new: False if the key had stored the same job before; then this is the last of its retries.
        new_warehouse: this call made the warehouse; if there should have been one, it is not
            mounted here.
        found_as: its status at the request; ``halted``: it cannot continue by itself.
        retried: the job that this one retries because the submit requested it.
    """

    id: str
    new: bool
    new_warehouse: bool = False
    warnings: tuple[str, ...] = ()  # parameters of the spec that nothing uses
    found_as: Status = Status.PENDING
    halted: bool = False
    retried: str = ""

    @property
    def not_well(self) -> bool:
        """Whether the job of the key needs a user to finish."""
        return self.halted or (self.found_as.terminal and self.found_as is not Status.FINISHED)

    @property
    def summary(self) -> str:
        """A description of a job that is not new, or of a retry."""
        if self.retried and self.new:
            return (
                f"Job {self.retried} of this key had not finished well; it is retried as job "
                f"{self.id}"
            )
        text = (
            f"The same spec was submitted under this key before: job {self.id}, which is "
            f"{self.found_as}"
        )
        if self.halted:
            return f"{text} and cannot go on by itself, and `unstuck why {self.id}` says what helps"
        return (
            f"{text}. To retry it, submit with --retry, or `unstuck retry {self.id}`"
            if self.not_well
            else text
        )


def new_job_id(now: float) -> str:
    """Return a job id that sorts by time: ``20131231T235959-k3f9a2xw``."""
    stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%dT%H%M%S")
    return (
        stamp + "-" + "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(8))
    )
