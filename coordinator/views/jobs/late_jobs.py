"""Jobs that no schedule submits, and that are late by a rule: as the coordinators have judged them."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore


@dataclass(frozen=True, slots=True)
class LateJob:
    """A name of jobs none of which has ended well by its deadline ``since``; ``text`` says so."""

    name: str
    since: float
    text: str


def late_jobs(store: ExpectedJobsStore) -> list[LateJob]:
    """The names that are late, the oldest first."""
    standing = {name: one for name, text in store.all()[1].items() if (one := Expected.from_json(text)).stands}
    by_itself = standing.keys() - store.are_schedules([*standing])
    found = [
        LateJob(name, told.since, standing[name].texts[key])
        for name in by_itself
        for key, told in standing[name].told.items()
        if not told.over
    ]
    return sorted(found, key=lambda one: (one.since, one.name))
