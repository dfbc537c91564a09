"""Collects the problems of an installation, the running jobs, and the jobs that ended in the last
day. Read-only and bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unstuck.client.client import Client
from unstuck.client.waits import waits_of
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.problems.detect import detect
from unstuck.coordinator.problems.problem import Problem, ProblemCode
from unstuck.coordinator.problems.state import InstallationState
from unstuck.read_model.job import JobInfo
from unstuck.views.installation import limits_of

MAX_ROWS_SHOWN = 30  # of one list
MAX_JOBS_PER_SCAN = 500  # the newest, among which ended jobs are searched for
DAY_S = 86400.0
EXPLAIN_WITHIN_S = 1.0  # for the reasons of all jobs that are shown
NOT_RUNNING = (Status.HALTED, Status.RETRYING)
RUNNING = tuple(status for status in Status if not status.terminal and status not in NOT_RUNNING)


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The jobs of one name that ended lately: the newest, and the number of jobs by status."""

    job: JobInfo
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The installation at one moment.

    Attributes:
        running: open jobs that are neither HALTED nor RETRYING, the newest first.
        newest: the newest jobs of any status.
    """

    state: InstallationState
    problems: Sequence[Problem]
    running: Sequence[JobInfo]
    newest: Sequence[JobInfo]

    @classmethod
    def of(cls, client: Client) -> Snapshot:
        """Read a snapshot. Raises: Unreachable."""
        state = client.problem_state()
        newest = client.jobs(limit=MAX_JOBS_PER_SCAN)
        running = client.jobs(status=RUNNING, limit=MAX_ROWS_SHOWN + 1)
        problems = detect(state, limits_of(client.settings))
        return cls(state, [_with_newest(each, newest) for each in problems], running, newest)

    @property
    def at(self) -> float:
        """Unix seconds by the clock of Redis."""
        return self.state.fleet.at

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
        return sorted(groups, key=lambda ended: -ended.job.ended_at)

    def explained(self, client: Client) -> tuple[Snapshot, dict[str, str]]:
        """Return the snapshot with a sentence in each problem, and the line of ``why`` by job id.

        Raises: Unreachable.
        """
        unexplained = {problem.job for problem in self.problems if not problem.text}
        jobs = [job for job in self.state.jobs if job.id in unexplained]
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
