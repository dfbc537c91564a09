"""Jobs that no schedule submits, and that are late by a rule: as the coordinators have judged
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.json_fields import Time
from unstuck.tasks.protocol.report import in_short


@dataclass(frozen=True, slots=True)
class LateJob:
    """A name of jobs none of which has ended well by its deadline ``since``; ``text`` says so.

    ``since`` is 0 where the record of the name is damaged, so that nobody knows whether it is late.
    """

    name: str
    since: Time
    text: str


def late_jobs(store: ExpectedJobsStore) -> list[LateJob]:
    """The names that are late, the oldest first; before them those of which that cannot be read."""
    late: list[LateJob] = []
    for name, text in store.all()[1].items():
        try:
            expected = Expected.from_json(text)
        except ValueError as error:
            sentence = (
                f"whether it is late is not known: its record cannot be read ({in_short(error)})"
            )
            late.append(LateJob(name, 0.0, sentence))
            continue
        late += [
            LateJob(name, since, expected.texts.get(key, key))
            for key, since in expected.late.items()
        ]
    scheduled = store.are_schedules([job.name for job in late])
    return sorted(
        (job for job in late if job.name not in scheduled), key=lambda job: (job.since, job.name)
    )
