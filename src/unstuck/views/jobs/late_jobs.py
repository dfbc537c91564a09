"""Jobs that no schedule submits, and that are late by a rule: as the coordinators have judged
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.protocol.report import in_short


@dataclass(frozen=True, slots=True)
class LateJob:
    """A name of jobs none of which has ended well by its deadline ``since``; ``text`` says so.

    ``since`` is 0 where the record of the name is damaged, so that nobody knows whether it is late.
    """

    name: str
    since: float
    text: str


def late_jobs(store: ExpectedJobsStore) -> list[LateJob]:
    """The names that are late, the oldest first; before them those of which that cannot be read."""
    found: list[LateJob] = []
    for name, text in store.all()[1].items():
        try:
            one = Expected.from_json(text)
        except ValueError as error:
            told = f"whether it is late is not known: its record cannot be read ({in_short(error)})"
            found.append(LateJob(name, 0.0, told))
            continue
        found += [LateJob(name, since, one.texts.get(key, key)) for key, since in one.late.items()]
    scheduled = store.are_schedules([one.name for one in found])
    return sorted(
        (one for one in found if one.name not in scheduled), key=lambda one: (one.since, one.name)
    )
