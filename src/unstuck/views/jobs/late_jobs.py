"""Late jobs that no schedule submits, as coordinators have judged them."""

from __future__ import annotations

from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.problems.problem import Problem, ProblemCode
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.protocol.report import in_short


def late_jobs(store: ExpectedJobsStore) -> list[Problem]:
    """Return the problem of each late name, the oldest first.

    Its ``since`` is the deadline. It is 0 for a damaged record, and these come first.
    """
    late: list[Problem] = []
    for name, text in store.all()[1].items():
        try:
            expected = Expected.from_json(text)
        except ValueError as error:
            sentence = (
                f"whether it is late is not known: its record cannot be read ({in_short(error)})"
            )
            late.append(Problem(ProblemCode.UNREADABLE, "job", name, sentence))
            continue
        late += [
            Problem(ProblemCode.LATE, "job", name, expected.texts.get(key, key), since, _help(name))
            for key, since in expected.late.items()
        ]
    scheduled = store.are_schedules([job.name for job in late])
    return sorted(
        (job for job in late if job.name not in scheduled), key=lambda job: (job.since, job.name)
    )


def _help(name: str) -> str:
    return f"unstuck list --name {name}"
