"""Detects every problem of an installation (pure).

The command line, the page, the API, metrics and the doctor present this result and detect nothing
by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.problems.fleet_problems import FLEET_RULES
from unstuck.coordinator.problems.job_problems import problems_of_job
from unstuck.coordinator.problems.problem import Limits, Problem, ProblemCode
from unstuck.coordinator.problems.schedule_problems import worst_problems
from unstuck.coordinator.problems.state import InstallationState, JobSummary

C = ProblemCode


@dataclass(frozen=True, slots=True)
class Detected:
    """The problems of an installation at one moment.

    Attributes:
        at: that moment, in Unix seconds by the clock of Redis.
        problems: the worst first, acknowledged ones last.
        jobs: the jobs that were checked.
    """

    at: float
    problems: list[Problem]
    jobs: Sequence[JobSummary]


def detect(state: InstallationState, limits: Limits) -> list[Problem]:
    """Return all problems, the worst first, and those that are acknowledged last."""
    jobs = [
        problem for job in state.jobs for problem in problems_of_job(job, limits, state.fleet.at)
    ]
    ended = [problem for problem in jobs if problem.code in (C.HALTED, C.FAILED)]
    problems = [
        *(problem for rule in FLEET_RULES for problem in rule(state, limits)),
        *ended,
        *_unreadable(state),
        *worst_problems(state.schedules, limits),
        *state.late,
        *(problem for problem in jobs if problem not in ended),
    ]
    marked = [_with_acknowledgement(problem, state) for problem in problems]
    return sorted(marked, key=lambda problem: problem.acknowledged is not None)


def open_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that nobody has acknowledged."""
    return [problem for problem in problems if problem.acknowledged is None]


def _with_acknowledgement(problem: Problem, state: InstallationState) -> Problem:
    entry = state.acknowledged.get(problem.id)
    if entry is None or entry.version != problem.version or entry.expired(state.fleet.at):
        return problem
    return replace(problem, acknowledged=entry)


def detect_in_fleet(fleet: FleetInfo, limits: Limits) -> list[Problem]:
    """Return the problems of the processes, queues and hosts of a fleet that has work."""
    state = InstallationState(fleet, open_jobs=1)
    return [problem for rule in FLEET_RULES for problem in rule(state, limits)]


def _unreadable(state: InstallationState) -> Iterator[Problem]:
    for name, text in state.unreadable.items():
        yield Problem(C.UNREADABLE, "schedule", name, text, remedy="unstuck schedule set SPEC")
