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
    known = {name: one for name, text in store.all()[1].items() if (one := Expected.from_json(text)).late}
    by_itself = known.keys() - store.are_schedules([*known])
    found = [
        LateJob(name, since, known[name].texts[key]) for name in by_itself for key, since in known[name].late.items()
    ]
    return sorted(found, key=lambda one: (one.since, one.name))
