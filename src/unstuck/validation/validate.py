"""Checks a spec without storing it: the spec itself, its SQL, and its code on request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.published_names import published_names
from unstuck.coordinator.spec.checks.sql_tables import UnknownTable, Writes, unknown_tables
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, Written
from unstuck.documents.problem import ProblemPlace
from unstuck.tasks.settings import Settings
from unstuck.validation.code_checks import CodeOfSteps, code_problems, groups_of, statement_problems

_BREAKER = CircuitBreaker()  # of this process: a call that hangs outlives its command


@dataclass(frozen=True, slots=True)
class Validation:
    """The size of a job, or the problems of its spec.

    Attributes:
        ok: whether the spec is right.
        name: of the job.
        groups: number of planned groups.
        forks: number of groups that are forked.
        members: number of groups and members; null if a fork is dynamic.
        steps: number of steps.
        problems: mistakes in the spec.
        warnings: parts of the spec without effect, and tables that may not exist.
        sql_parsed_by: what parsed the SQL; null if there is none.
    """

    ok: bool
    name: str | None = None
    groups: int | None = None
    forks: int | None = None
    members: int | None = None
    steps: int | None = None
    problems: tuple[ProblemPlace, ...] = ()
    warnings: tuple[str, ...] = ()
    sql_parsed_by: str | None = None

    @classmethod
    def of_error(cls, error: SpecError) -> Validation:
        places = (ProblemPlace(**problem.to_json()) for problem in error.problems)
        return cls(ok=False, problems=tuple(places))


def validate_spec(
    written: Written, params: Mapping[str, Any] | None, settings: Settings, *, imports: bool = False
) -> tuple[Plan, Validation]:
    """Return the plan of a valid spec, and the warnings.

    Args:
        params: None: required parameters need no value yet.
        imports: import the code of its steps.

    Raises:
        SpecError: with all problems.
        BadRequest: nothing can be imported here.
    """
    job, plan, problems, warnings = None, None, list[SpecProblem](), list[SpecProblem]()
    try:
        job = JobSpec.from_written(written, params, scheduled=True)
        job.check_zone(settings.time_zone)
        plan = compile_to_store(job).plan
    except SpecError as error:
        problems += error.problems
    groups = dict(enumerate(job.groups)) if job else groups_of(written)
    code = CodeOfSteps({}, (), {})
    if imports:
        code = code_problems(groups, written, settings.step_modules)
    by, wrong, doubtful = statement_problems(groups, written, settings.spark_conf)
    reported = {
        problem.loc for problem in problems
    }  # the first problem of a place is the nearest to its cause
    problems += [problem for problem in (*code.problems, *wrong) if problem.loc not in reported]
    unknown = _unknown_tables(job, settings, code.writes) if job else []
    steps = {problem.loc[:4] for problem in problems}
    problems += [
        table.problem for table in unknown if table.is_sure and table.problem.loc[:4] not in steps
    ]
    warnings += [table.problem for table in unknown if not table.is_sure]
    if problems or job is None or plan is None:
        raise SpecError([written.located(problem) for problem in problems])
    warnings += [*doubts(job, code.takes), *doubtful]
    located = sorted(
        map(written.located, warnings), key=lambda problem: (problem.line or 0, problem.column or 0)
    )
    forks = [group.spec for group in plan.groups.values() if group.spec.for_each is not None]
    dynamic = any(fork.fork_from is not None for fork in forks)
    return plan, Validation(
        ok=True,
        name=job.name,
        groups=len(plan.groups),
        forks=len(forks),
        members=None
        if dynamic
        else sum(plan.member_count(group, {}) or 0 for group in plan.groups),
        steps=sum(len(group.spec.steps) for group in plan.groups.values()),
        warnings=tuple(map(str, located)),
        sql_parsed_by=by or None,
    )


def check_tables_by_code(job: JobSpec, settings: Settings) -> None:
    """Check the tables that the SQL of ``job`` reads, importing the code of its steps if needed.

    The code is imported by another process, and only if a table is in doubt. If it cannot be
    imported there, the doubt is left to the run. Raises: SpecError: nothing provides a table.
    """
    unknown = _unknown_tables(job, settings)
    if unknown and not any(table.is_sure for table in unknown):
        code = CodeOfSteps({}, (), {})
        with suppress(BadRequest):
            values = {"params": dict(job.params)}
            code = code_problems(
                dict(enumerate(job.groups)),
                Written(values, lambda problem: problem),
                settings.step_modules,
            )
        unknown = _unknown_tables(job, settings, code.writes)
    if problems := [table.problem for table in unknown if table.is_sure]:
        raise SpecError(problems)


def _unknown_tables(
    job: JobSpec, settings: Settings, writes: Writes | None = None
) -> list[UnknownTable]:
    return unknown_tables(
        job, settings, partial(published_names, settings.warehouse, _BREAKER), writes
    )
