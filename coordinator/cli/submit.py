"""``unstuck submit`` stores a job; ``unstuck validate`` checks its spec without Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import STANDARD_INPUT, AsJson, By, Params, read_spec
from unstuck.coordinator.cli.render.json import job_json
from unstuck.coordinator.cli.render.terminal import count_of, emit, for_people, stderr, stdout
from unstuck.coordinator.cli.watch import await_end
from unstuck.coordinator.client import Client
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.spec.checks.unused import Takes, unbound_markers, unused_params
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import Problem, SpecError
from unstuck.coordinator.store.answers import Submitted

SPEC = "A job spec, YAML or JSON; `-` is standard input; module:job is a job in Python."


def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help=SPEC)],
    param: Params = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Submitting the same spec under the same key again is the same job.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="If the last job of the key did not finish well, retry it, with this spec.")
    ] = False,
    by: By = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job ends; exit code 1 if it fails.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Answer in JSON; with --wait once the job has ended.")
    ] = False,
) -> None:
    """Submit a job. It runs whether or not anybody watches."""
    job_spec = read_spec(spec, param)
    settings = settings_here()
    warehouse_at(settings.warehouse)
    with connected(settings) as connection:
        submitted = connection.client.submit(job_spec, key=key, retry=retry, by=by).submitted
        _show_submitted(connection.client, job_spec.name, submitted, as_json)
        code = ExitCode.NOT_WELL if submitted.not_well else ExitCode.FINE
        if wait:
            code = await_end(connection.client, submitted.id, for_people(as_json))
        if as_json:
            answer: dict[str, Any] = {"id": submitted.id, "name": job_spec.name, "new": submitted.new}
            answer |= {"status": submitted.found_as, "retried": submitted.retried or None}
            answer["warnings"] = list(submitted.warnings)
            emit({**answer, **job_json(connection.client.show(submitted.id))} if wait else answer)
        elif not wait:
            stdout.print(f"  watch it   unstuck watch {submitted.id}\n  state      unstuck show {submitted.id}")
    raise typer.Exit(code)


def _show_submitted(client: Client, name: str, submitted: Submitted, as_json: bool) -> None:
    """Say which job this is, whether it is new, and whether its warehouse is."""
    out = for_people(as_json)
    _warn(submitted.warnings)
    fresh = submitted.new and not submitted.retried
    out.print(f"Submitted {name}: job {submitted.id}" if fresh else f"{submitted.told}.")
    if submitted.new_warehouse:
        out.print(f"  warehouse  {client.settings.warehouse}, which was not there, and was made", style="dim")


def validate(
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC", help=SPEC, show_default=False)] = None,
    param: Params = None,
    imports: Annotated[
        bool, typer.Option("--imports", help="Import the code of the steps, and check that it takes their parameters.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a spec, for editors.")] = False,
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
        job = read_spec(spec, param, scheduled=True, unfinished=not param)
        job.check_zone(settings_here().time_zone)
        plan = compile_to_store(job).plan
        unused = unused_params(job, _imported(job) if imports else None)
        warnings = list(map(str, (*unused, *unbound_markers(job))))
    except SpecError as error:
        if not as_json:
            raise
        emit({"ok": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(ExitCode.USAGE) from None
    forks = [group.spec for group in plan.groups.values() if group.spec.for_each is not None]
    dynamic = sum(fork.fork_from is not None for fork in forks)
    members = sum(plan.member_count(name, {}) or 0 for name in plan.groups)
    answer: dict[str, Any] = {
        "ok": True,
        "name": job.name,
        "groups": len(plan.groups),
        "forks": len(forks),
        "members": None if dynamic else members,
        "steps": sum(len(group.spec.steps) for group in plan.groups.values()),
        "problems": [],
        "warnings": warnings,
    }
    if as_json:
        emit(answer)
        return
    _warn(warnings)
    open_ended = f", {dynamic} of them dynamic" if dynamic else ""
    size = f"at least {members}" if dynamic else str(members)
    source = "standard input" if spec == STANDARD_INPUT else spec
    stdout.print(
        f"OK: {source}: job {job.name}, {count_of(len(plan.groups), 'group')} ({len(forks)} forked{open_ended}), "
        f"{count_of(answer['steps'], 'step')}, {size} to run"
    )


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        stderr.print(f"Warning: {warning}")


def _imported(job: JobSpec) -> Takes:
    """The parameters that the Python of each group takes. A process of its own imports it, as a worker does.

    Raises:
        SpecError: some of it cannot be imported, or does not fit the spec.
        BadRequest: nothing can be imported here.
    """
    from unstuck.coordinator.spec.plan import compile_plan

    groups = compile_plan(job).groups
    asked = {
        "groups": [group.spec.model_dump(mode="json", by_alias=True) for group in groups.values()],
        "params": job.values,
        "allowed": settings_here().step_modules,
    }
    program = [sys.executable, "-m", "unstuck.tasks.steps.calls"]
    done = subprocess.run(program, input=json.dumps(asked), text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BadRequest("the code of the steps cannot be imported here; validate it where workers run")
    answer = json.loads(done.stdout)
    problems = [
        Problem(text, ("groups", i, "steps", step, "python"))
        for i, group in enumerate(job.groups)
        for step, text in answer[group.name]["problems"]
    ]
    if problems:
        raise SpecError(problems)
    return {name: found["takes"] for name, found in answer.items()}
