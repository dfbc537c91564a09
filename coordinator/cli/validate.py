"""``unstuck validate``: is this a job spec, and of what size. Needs no Redis, no warehouse and no worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.render.terminal import count_of, emit, stdout
from unstuck.coordinator.cli.submit import params_of
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import Problem, SpecError


def validate(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="A job spec, YAML or JSON.", show_default=False)
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Set a parameter of the spec.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a spec, for editors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Check a job spec without submitting it. Exit code 2 with all its problems if it is wrong."""
    if schema:
        from unstuck.coordinator.spec.json_schema import json_schema

        emit(json_schema())
        return
    if spec is None:
        raise typer.BadParameter("name a job spec, or give --schema", param_hint="SPEC")
    try:
        job = JobSpec.from_file(spec, params_of(param or []))
        plan = compile_to_store(job).plan
    except SpecError as error:
        if not as_json:
            raise
        emit({"ok": False, "problems": [_problem(problem) for problem in error.problems]})
        raise typer.Exit(ExitCode.USAGE) from None
    forks = [group for group in plan.groups.values() if group.spec.for_each is not None]
    dynamic = sum(1 for group in forks if group.spec.fork_from is not None)
    members = sum(plan.member_count(name, {}) or 0 for name in plan.groups)
    answer: dict[str, Any] = {
        "ok": True,
        "name": job.name,
        "groups": len(plan.groups),
        "forks": len(forks),
        "members": None if dynamic else members,
        "steps": sum(len(group.spec.steps) for group in plan.groups.values()),
        "problems": [],
    }
    if as_json:
        emit(answer)
        return
    open_ended = f", {dynamic} of them dynamic" if dynamic else ""
    size = f"at least {members}" if dynamic else str(members)
    stdout.print(
        f"OK: {spec}: job {job.name}, {count_of(len(plan.groups), 'group')} "
        f"({len(forks)} forked{open_ended}), {count_of(answer['steps'], 'step')}, {size} to run"
    )


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.source or None,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
        "message": problem.message,
    }
