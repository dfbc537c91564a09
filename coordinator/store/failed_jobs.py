"""The index of failed jobs: the last job of each name, until another job of that name is submitted.

A job enters it with the commit of its failure, so a rollback of Redis takes back both.
"""

from __future__ import annotations

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.tick import is_by_hand


def reported_as(job: JobRecord) -> str:
    """Return the field of ``job`` in the index; empty for a run, whose schedule reports it."""
    return "" if job.schedule and not is_by_hand(job.key) else job.name
