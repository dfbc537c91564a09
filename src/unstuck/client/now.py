"""Collects the problems, the running jobs, and the jobs that ended in the last day.

Read-only and bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, computed_field

from unstuck.client.client import Client
from unstuck.client.waits import waits_of
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.problem import Problem, ProblemCode
from unstuck.coordinator.problems.state import JobSummary
from unstuck.read_model.job import JobInfo
from unstuck.tasks.json_fields import Time

MAX_ROWS_SHOWN = 30  # of one list
MAX_JOBS_PER_SCAN = 500  # the newest, among which ended jobs are searched for
DAY_S = 86400.0
EXPLAIN_WITHIN_S = 1.0  # for the reasons of all jobs that are shown
NOT_RUNNING = (Status.HALTED, Status.RETRYING)
RUNNING = tuple(status for status in Status if not status.terminal and status not in NOT_RUNNING)


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The jobs of one name that ended lately.

    Attributes:
        last: the job that ended last.
        counts: number of the jobs by status.
    """

    last: Annotated[JobInfo, Field(exclude=True)]
    counts: Mapping[Status, int]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def name(self) -> str:
        """Name of the jobs."""
        return self.last.name

    @computed_field  # type: ignore[prop-decorator]
    @property
    def job(self) -> str:
        """Id of the job that ended last."""
        return self.last.id

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Status:
        """Status of that job."""
        return self.last.status

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ended_at(self) -> Time:
        """When it ended."""
        return self.last.ended_at


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The installation at one moment.

    Attributes:
        at: that moment, in Unix seconds by the clock of Redis.
        problems: the worst first, acknowledged ones last.
        suspects: jobs that may have a problem.
        running: open jobs that are neither HALTED nor RETRYING, the newest first.
        newest: the newest jobs of any status.
    """

    at: float
    problems: Sequence[Problem]
    suspects: Sequence[JobSummary]
    running: Sequence[JobInfo]
    newest: Sequence[JobInfo]

    @classmethod
    def of(cls, client: Client) -> Snapshot:
        """Read a snapshot. Raises: Unreachable."""
        detected = client.detected()
        newest = client.jobs(limit=MAX_JOBS_PER_SCAN)
        running = client.jobs(status=RUNNING, limit=MAX_ROWS_SHOWN + 1)
        problems = [_with_newest(each, newest) for each in detected.problems]
        return cls(detected.at, problems, detected.jobs, running, newest)

    @property
    def others(self) -> list[JobInfo]:
        """Running jobs without a problem."""
        reported = {problem.job for problem in self.problems}
        return [job for job in self.running[:MAX_ROWS_SHOWN] if job.id not in reported]

    @property
    def ended(self) -> list[EndedJobs]:
        """The jobs that ended in the last day, grouped by name, the last end first."""
        by_name: dict[str, list[JobInfo]] = {}
        for job in self.newest:
            if job.status.terminal and self.at - job.ended_at < DAY_S:
                by_name.setdefault(job.name, []).append(job)
        groups = [
            EndedJobs(max(same, key=lambda job: job.ended_at), Counter(job.status for job in same))
            for same in by_name.values()
        ]
        return sorted(groups, key=lambda ended: -ended.ended_at)

    def explained(self, client: Client) -> tuple[Snapshot, dict[str, str]]:
        """Return the snapshot with a sentence in each problem, and the line of ``why`` by job id.

        Raises: Unreachable.
        """
        unexplained = {problem.job for problem in self.problems if not problem.text}
        jobs = [job for job in self.suspects if job.id in unexplained]
        waits = waits_of(client, [*jobs, *self.others], EXPLAIN_WITHIN_S)
        problems = [
            problem if problem.text else replace(problem, text=waits.get(problem.job, ""))
            for problem in self.problems
        ]
        return replace(self, problems=problems), waits


def _with_newest(problem: Problem, newest: Sequence[JobInfo]) -> Problem:
    """Add the newest job of its name to the sentence of a late job."""
    if problem.kind != "job" or problem.code is not ProblemCode.LATE:
        return problem
    jobs = (job for job in newest if job.name == problem.name and not job.schedule)
    job = next(jobs, None)
    text = f"no job of this name is among the newest {MAX_JOBS_PER_SCAN}"
    if job is not None:
        text = f"job {job.id}, the newest, is {job.status}"
    return replace(problem, text=f"{problem.text}; {text}")
