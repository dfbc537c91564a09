"""Checks a spec without storing it: the spec itself, its SQL, and its code on request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
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
from unstuck.validation.code_checks import NO_CODE, code_problems, groups_of, statement_problems

_BREAKER = CircuitBreaker()  # of this process: a call that hangs outlives its command
STEP_DEPTH = len(("groups", 0, "steps", 0))  # of the path of a step


@dataclass(frozen=True, slots=True)
class Validation:
    """The size of a job, or the problems of its spec.

    Attributes:
        ok: whether the spec is valid.
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
    def of_plan(cls, plan: Plan, warnings: Iterable[SpecProblem], sql_parsed_by: str) -> Validation:
        """Return the size of a valid job. ``sql_parsed_by``: empty if there is no SQL."""
        specs = [group.spec for group in plan.groups.values()]
        forks = [spec for spec in specs if spec.for_each is not None]
        dynamic = any(fork.fork_from is not None for fork in forks)
        members = sum(plan.member_count(name, {}) or 0 for name in plan.groups)
        return cls(
            ok=True,
            name=plan.name,
            groups=len(specs),
            forks=len(forks),
            members=None if dynamic else members,
            steps=sum(len(spec.steps) for spec in specs),
            warnings=tuple(map(str, warnings)),
            sql_parsed_by=sql_parsed_by or None,
        )

    @classmethod
    def of_error(cls, error: SpecError) -> Validation:
        places = (ProblemPlace(**problem.to_json()) for problem in error.problems)
        return cls(ok=False, problems=tuple(places))


def validate_spec(
    written: Written, params: Mapping[str, Any] | None, settings: Settings, *, imports: bool = False
) -> tuple[Plan, Validation]:
    """Return the plan of a valid spec, and its `Validation` with the warnings.

    Args:
        params: None: required parameters need no value yet.
        imports: import the code of its steps.

    Raises:
        SpecError: with all problems.
        BadRequest: nothing can be imported here.
    """
    job, plan, problems = _compiled(written, params, settings)
    groups = dict(enumerate(job.groups)) if job else groups_of(written)
    code = code_problems(groups, written, settings.step_modules) if imports else NO_CODE
    parsed_by, wrong, doubtful = statement_problems(groups, written, settings.spark_conf)
    problems += _not_yet_reported(problems, [*code.problems, *wrong])
    unknown = _unknown_tables(job, settings, code.writes) if job else []
    sure = [table.problem for table in unknown if table.is_sure]
    problems += _not_yet_reported(problems, sure, STEP_DEPTH)
    if problems or job is None or plan is None:
        raise SpecError([written.located(problem) for problem in problems])
    unsure = [table.problem for table in unknown if not table.is_sure]
    warnings = map(written.located, [*unsure, *doubts(job, code.takes), *doubtful])
    in_order = sorted(warnings, key=attrgetter("position"))
    return plan, Validation.of_plan(plan, in_order, parsed_by)


def _compiled(
    written: Written, params: Mapping[str, Any] | None, settings: Settings
) -> tuple[JobSpec | None, Plan | None, list[SpecProblem]]:
    """Return the job and the plan of a spec, as far as it is valid, and its problems."""
    job = None
    try:
        job = JobSpec.from_written(written, params, scheduled=True)
        job.check_zone(settings.time_zone)
        return job, compile_to_store(job).plan, []
    except SpecError as error:
        return job, None, list(error.problems)


def _not_yet_reported(
    reported: Iterable[SpecProblem], problems: Iterable[SpecProblem], depth: int | None = None
) -> list[SpecProblem]:
    """Return the ``problems`` whose place has no reported problem yet.

    The earlier problem of a place is nearer to the cause.

    Args:
        depth: parts of a path that name a place; None: all.
    """
    places = {problem.loc[:depth] for problem in reported}
    return [problem for problem in problems if problem.loc[:depth] not in places]


def check_tables_by_code(job: JobSpec, settings: Settings) -> None:
    """Check the tables that the SQL of ``job`` reads, importing the code of its steps if needed.

    The code is imported by another process, and only if a table is in doubt. If it cannot be
    imported there, the doubt is left to the run. Raises: SpecError: nothing provides a table.
    """
    unknown = _unknown_tables(job, settings)
    if unknown and not any(table.is_sure for table in unknown):
        code = NO_CODE
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
