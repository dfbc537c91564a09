"""``unstuck submit``: store a job, and with ``--wait`` see it through."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unstuck.coordinator.cli.connection import connected, settings_here
from unstuck.coordinator.cli.control import By
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.render.json import job_json
from unstuck.coordinator.cli.render.terminal import emit, stderr, voice
from unstuck.coordinator.cli.watch import await_end
from unstuck.coordinator.client import Client, Submitted
from unstuck.coordinator.spec.model import JobSpec


def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A job spec, YAML or JSON.", show_default=False)],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="Set a parameter of the spec.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Submitting the same spec under the same key again is the same job.")
    ] = None,
    by: By = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job ends; exit code 1 if it fails.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Answer in JSON; with --wait once the job has ended.")
    ] = False,
) -> None:
    """Submit a job. It runs whether or not anybody watches."""
    job_spec = JobSpec.from_file(spec, params_of(param or []))
    settings = settings_here()
    warehouse_at(settings.warehouse)
    with connected(settings) as connection:
        submitted = connection.client.submit(job_spec, key=key, by=by)
        tell(connection.client, job_spec.name, submitted, as_json)
        code = ExitCode.FINE
        if wait:
            code = await_end(connection, submitted.id, voice(as_json))
        if as_json:
            answer: dict[str, Any] = {"id": submitted.id, "name": job_spec.name, "new": submitted.new}
            emit({**job_json(connection.client.show(submitted.id)), **answer} if wait else answer)
        elif not wait:
            voice(as_json).print(f"  watch it   unstuck watch {submitted.id}\n  state      unstuck show {submitted.id}")
    raise typer.Exit(code)


def tell(client: Client, name: str, submitted: Submitted, as_json: bool) -> None:
    """Say which job this is, whether it is new, and whether its warehouse is."""
    out = stderr if as_json else voice(as_json)
    if submitted.new_warehouse:
        # The job runs and is published all the same, so it is said here or noticed late.
        stderr.print(
            f"A new warehouse was made at {client.settings.warehouse}, where there was none. If one should be there, "
            f"it is not mounted on this machine: `unstuck cancel {submitted.id}`, mount it, and submit again."
        )
    if submitted.new:
        out.print(f"Submitted {name}: job {submitted.id}")
        return
    status = client.show(submitted.id).job.status
    out.print(f"The same spec was submitted under this key before: job {submitted.id} of {name}, which is {status}.")


def params_of(texts: list[str], option: str = "--param", form: str = "NAME=VALUE") -> dict[str, str]:
    """``{"year": "2013"}`` of ``["year=2013"]``. Raises: typer.BadParameter."""
    params = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        params[name] = value
    return params
