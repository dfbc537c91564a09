"""Problems of a job (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Limits, Problem, ProblemCode
from unstuck.coordinator.problems.state import JobSummary

C = ProblemCode


def problems_of_job(job: JobSummary, limits: Limits, now: float) -> Iterator[Problem]:
    """Yield the problem of a listed job, if it has one."""
    begun = job.started_at or job.submitted_at
    match job.status:
        case Status.HALTED:
            remedy = f"unstuck resume {job.id}, when its cause is gone; or unstuck cancel {job.id}"
            yield Problem(C.HALTED, "job", job.name, "", job.submitted_at, remedy, job=job.id)
        case Status.FAILED:
            text = job.reason.text if job.reason is not None else ""
            remedy = f"unstuck retry {job.id}"
            yield Problem(C.FAILED, "job", job.name, text, job.ended_at, remedy, job=job.id)
        case Status.RETRYING:
            yield Problem(C.RETRYING, "job", job.name, since=begun, job=job.id)
        case Status.PENDING if not job.started_at and now - job.submitted_at > limits.waiting:
            yield Problem(C.WAITING, "job", job.name, since=begun, job=job.id)
