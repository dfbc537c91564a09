"""``unstuck validate`` checks a job spec without Redis: the spec itself, its SQL, and with ``--imports`` its code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unstuck.coordinator.cli.connection import settings_here
from unstuck.coordinator.cli.options import (
    STANDARD_INPUT,
    AsJson,
    Graph,
    Params,
    params_of,
    write_picture,
    written_spec,
)
from unstuck.coordinator.cli.render.terminal import emit, stdout
from unstuck.coordinator.cli.specs.code_checks import CodeOfSteps, code_problems, groups_of, statement_problems
from unstuck.coordinator.cli.specs.submit import SPEC, warn
from unstuck.coordinator.exits import ExitCode
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.spec.checks.unused import unbound_markers, unused_params
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan
from unstuck.coordinator.spec.problems import Problem, SpecError, Written
from unstuck.coordinator.views.job_pictures import graph_of_plan
from unstuck.coordinator.views.words import count_of


def validate(
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC", help=SPEC, show_default=False)] = None,
    param: Params = None,
    imports: Annotated[
        bool,
        typer.Option("--imports", help="Import the code of the steps; check it against parameters, inputs, outputs."),
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a spec, for editors.")] = False,
    graph: Graph = None,
    as_json: AsJson = False,
) -> None:
    """Check a job spec without submitting it. Exit code 2 with all its problems if it is wrong."""
    if schema:
        from unstuck.coordinator.spec.json_schema import json_schema

        emit(json_schema())
        return
    if spec is None:
        raise typer.BadParameter("name a job spec, or give --schema", param_hint="SPEC")
    try:
        name, plan, answer = _checked(written_spec(spec), params_of(param) if param else None, imports)
    except SpecError as error:
        if not as_json:
            raise
        emit({"ok": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(ExitCode.USAGE) from None
    if graph is not None:
        write_picture(graph_of_plan(plan), graph)
        if graph == STANDARD_INPUT:
            return
    forks = [group.spec for group in plan.groups.values() if group.spec.for_each is not None]
    dynamic = sum(fork.fork_from is not None for fork in forks)
    members = sum(plan.member_count(group, {}) or 0 for group in plan.groups)
    answer = {
        "ok": True,
        "name": name,
        "groups": len(plan.groups),
        "forks": len(forks),
        "members": None if dynamic else members,
        "steps": sum(len(group.spec.steps) for group in plan.groups.values()),
        "problems": [],
        **answer,
    }
    if as_json:
        emit(answer)
        return
    warn(answer["warnings"])
    open_ended = f", {dynamic} of them dynamic" if dynamic else ""
    size = f"at least {members}" if dynamic else str(members)
    source = "standard input" if spec == STANDARD_INPUT else spec
    stdout.print(
        f"OK: {source}: job {name}, {count_of(len(plan.groups), 'group')} ({len(forks)} forked{open_ended}), "
        f"{count_of(answer['steps'], 'step')}, {size} to run"
    )


def _checked(written: Written, params: dict[str, str] | None, imports: bool) -> tuple[str, Plan, dict[str, Any]]:
    """The name and the plan of a job, and what else is to be told of its spec. Raises: SpecError: with all problems."""
    settings = settings_here()
    job, plan, problems, warnings = None, None, list[Problem](), list[Problem]()
    try:
        job = JobSpec.from_written(written, params, scheduled=True)
        job.check_zone(settings.time_zone)
        plan = compile_to_store(job).plan
    except SpecError as error:
        problems += error.problems
    groups = dict(enumerate(job.groups)) if job else groups_of(written)
    code = CodeOfSteps({}, ())
    if imports:
        code = code_problems(groups, written, settings.step_modules)
    by, wrong, doubtful = statement_problems(groups, written, settings.spark_conf)
    told = {problem.loc for problem in problems}  # the first that is told of a place is the nearest to its cause
    problems += [problem for problem in (*code.problems, *wrong) if problem.loc not in told]
    if problems or job is None or plan is None:
        raise SpecError([written.located(problem) for problem in problems])
    warnings += [*unused_params(job, code.takes), *unbound_markers(job), *doubtful]
    located = sorted(map(written.located, warnings), key=lambda one: (one.line or 0, one.column or 0))
    return job.name, plan, {"warnings": [str(one) for one in located], "sql_parsed_by": by or None}
