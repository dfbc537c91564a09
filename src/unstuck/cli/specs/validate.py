"""``unstuck validate`` checks a job spec, its SQL and (``--imports``) its code without Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unstuck.cli.connection import settings_here
from unstuck.cli.options import (
    SPEC,
    STANDARD_INPUT,
    AsJson,
    Graph,
    Params,
    params_of,
    write_picture,
    written_spec,
)
from unstuck.cli.render.terminal import emit, stdout, warn
from unstuck.coordinator.spec.plan import Plan
from unstuck.coordinator.spec.problems import SpecError
from unstuck.exits import ExitCode
from unstuck.validation.validate import Validation, validate_spec
from unstuck.views.jobs.job_pictures import graph_of_plan
from unstuck.views.words import count_of


def validate(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help=SPEC, show_default=False)
    ] = None,
    param: Params = None,
    imports: Annotated[
        bool,
        typer.Option(
            "--imports",
            help="Import the code of the steps; check it against parameters, inputs, outputs.",
        ),
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of a spec, for editors.")
    ] = False,
    graph: Graph = None,
    as_json: AsJson = False,
) -> None:
    """Check a job spec without submitting it. Exit code 2, with all problems, if it is wrong."""
    if schema:
        from unstuck.coordinator.spec.json_schema import json_schema

        emit(json_schema())
        return
    if spec is None:
        raise typer.BadParameter("name a job spec, or give --schema", param_hint="SPEC")
    try:
        written, values = written_spec(spec), params_of(param) if param else None
        plan, document = validate_spec(written, values, settings_here(), imports=imports)
    except SpecError as error:
        if not as_json:
            raise
        emit(Validation.of_error(error))
        raise typer.Exit(ExitCode.USAGE) from None
    if graph is not None:
        write_picture(graph_of_plan(plan), graph)
        if graph == STANDARD_INPUT:
            return
    if as_json:
        emit(document)
        return
    warn(document.warnings)
    source = "standard input" if spec == STANDARD_INPUT else str(spec)
    stdout.print(_sentence(source, plan, document))


def _sentence(source: str, plan: Plan, document: Validation) -> str:
    dynamic = sum(group.spec.fork_from is not None for group in plan.groups.values())
    members = sum(plan.member_count(group, {}) or 0 for group in plan.groups)
    of_forks = f"{document.forks} forked"
    size = str(members)
    if dynamic:
        of_forks += f", {dynamic} of them dynamic"
        size = f"at least {members}"
    return (
        f"OK: {source}: job {document.name}, {count_of(len(plan.groups), 'group')} ({of_forks}), "
        f"{count_of(document.steps or 0, 'step')}, {size} to run"
    )
