"""The list of commands: which word calls which function. Each command is a file of its own beside this one."""

from __future__ import annotations

from typing import Annotated

import typer

from unstuck.coordinator.cli.control import alter, cancel, force_stop, pause, rerun, resume, retry, skip, stop
from unstuck.coordinator.cli.datasets import datasets
from unstuck.coordinator.cli.jobs import list_jobs, show, why
from unstuck.coordinator.cli.logs import logs
from unstuck.coordinator.cli.ops.dead_letters import dead
from unstuck.coordinator.cli.ops.demo import demo
from unstuck.coordinator.cli.ops.doctor import doctor
from unstuck.coordinator.cli.ops.fleet import fleet
from unstuck.coordinator.cli.ops.local import up
from unstuck.coordinator.cli.submit import submit, validate
from unstuck.coordinator.cli.watch import events, watch

app = typer.Typer(
    name="unstuck",
    help="Spark pipelines on a fleet of Celery workers: no job gets stuck, and none lies about its state.",
    epilog="Exit codes: 0 fine · 1 the job did not finish well · 2 usage or spec · 3 no such job · "
    "4 refused in this state · 5 Redis unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"unstuck {version('unstuck')}")
        raise typer.Exit


@app.callback()
def _unstuck(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Spark pipelines on a fleet of Celery workers: no job gets stuck, and none lies about its state."""


app.command("up")(up)
app.command("demo")(demo)
app.command("submit")(submit)
app.command("list")(list_jobs)
app.command("show")(show)
app.command("watch")(watch)
app.command("why")(why)
app.command("fleet")(fleet)
app.command("doctor")(doctor)
app.command("pause")(pause)
app.command("resume")(resume)
app.command("stop")(stop)
app.command("cancel")(cancel)
app.command("force-stop")(force_stop)
app.command("retry")(retry)
app.command("alter")(alter)
app.command("skip")(skip)
app.command("rerun")(rerun)
app.command("events")(events)
app.command("logs")(logs)
app.command("validate")(validate)
app.command("datasets")(datasets)
app.add_typer(dead, name="dead")
