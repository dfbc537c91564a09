"""``unstuck submit`` stores a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.jobs.watch import await_end
from unstuck.cli.options import SPEC, By, Params, TakeOver, read_spec
from unstuck.cli.render.terminal import emit, for_people, stdout, warn
from unstuck.coordinator.store.answers import Submitted
from unstuck.documents.envelopes import SubmitAnswer
from unstuck.documents.json_text import plain
from unstuck.exits import ExitCode
from unstuck.views.dataset_views import warehouse_at

if TYPE_CHECKING:
    from unstuck.client.client import Client


def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help=SPEC)],
    param: Params = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Submitting the same spec under the same key again is the same job."
        ),
    ] = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="If the last job of the key did not finish well, retry it, with this spec.",
        ),
    ] = False,
    take_over: TakeOver = False,
    by: By = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until the job ends; exit code 1 if it fails.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Answer in JSON; with --wait once the job has ended.")
    ] = False,
) -> None:
    """Submit a job. It runs independently of this process."""
    job_spec = read_spec(spec, param)
    settings = settings_here()
    warehouse_at(settings.warehouse)
    with connected(settings) as connection:
        handle = connection.client.submit(
            job_spec, key=key, retry=retry, take_over=take_over, by=by
        )
        submitted = handle.submitted
        _show_submitted(connection.client, job_spec.name, submitted, as_json)
        code = ExitCode.NOT_WELL if submitted.not_well else ExitCode.FINE
        if wait:
            code = await_end(connection.client, submitted.id, for_people(as_json))
        if as_json:
            answer = plain(SubmitAnswer.of(submitted, job_spec.name))
            emit({**answer, **plain(connection.client.show(submitted.id))} if wait else answer)
        elif not wait:
            stdout.print(
                f"  watch it   unstuck watch {submitted.id}\n  state      unstuck show "
                f"{submitted.id}"
            )
    raise typer.Exit(code)


def _show_submitted(client: Client, name: str, submitted: Submitted, as_json: bool) -> None:
    """Print the job, whether it is new, and whether its warehouse is."""
    out = for_people(as_json)
    warn(submitted.warnings)
    fresh = submitted.new and not submitted.retried
    out.print(f"Submitted {name}: job {submitted.id}" if fresh else f"{submitted.summary}.")
    if submitted.new_warehouse:
        out.print(
            f"  warehouse  {client.settings.warehouse}, which was not there, and was made",
            style="dim",
        )
