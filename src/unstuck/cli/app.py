"""The table of commands: the function, the panel of the help, and an example for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from rich.markup import escape

from unstuck.cli.control import function_of
from unstuck.cli.demo.demo import demo
from unstuck.cli.jobs.logs import logs
from unstuck.cli.jobs.look import list_jobs, show, why
from unstuck.cli.jobs.now import now
from unstuck.cli.jobs.schedule import schedule
from unstuck.cli.jobs.watch import events, watch
from unstuck.cli.ops.ack import ack
from unstuck.cli.ops.dead_letters import dead
from unstuck.cli.ops.doctor import doctor
from unstuck.cli.ops.health import health
from unstuck.cli.ops.local import up
from unstuck.cli.ops.metrics import metrics
from unstuck.cli.ops.notify import notify
from unstuck.cli.ops.pools import pool
from unstuck.cli.ops.show_fleet import fleet
from unstuck.cli.ops.web import web
from unstuck.cli.specs.run import run
from unstuck.cli.specs.submit import submit
from unstuck.cli.specs.validate import validate
from unstuck.cli.warehouse.datasets import datasets
from unstuck.cli.warehouse.housekeeping import compact, vacuum
from unstuck.coordinator.command_table import COMMANDS, TargetKind

RUN, INSPECT, CONTROL, OPERATE = "Run", "Inspect", "Control", "Operate"
Row = tuple[str, str, Callable[..., None], str]
LOOKS: tuple[Row, ...] = (
    (RUN, "run", run, "unstuck run flights.yaml --param year=2013"),
    (RUN, "submit", submit, "unstuck submit flights.yaml --param year=2013 --wait"),
    (RUN, "validate", validate, "unstuck validate flights.yaml"),
    (RUN, "up", up, "unstuck up --workers 2"),
    (RUN, "demo", demo, "unstuck demo --keep"),
    (INSPECT, "now", now, "unstuck now --json"),
    (INSPECT, "list", list_jobs, "unstuck list --status RUNNING --since 2h"),
    (INSPECT, "show", show, "unstuck show flights"),
    (INSPECT, "watch", watch, "unstuck watch last"),
    (INSPECT, "why", why, "unstuck why flights"),
    (INSPECT, "events", events, "unstuck events last --follow"),
    (INSPECT, "logs", logs, "unstuck logs flights 'by_month[3]' --follow"),
    (INSPECT, "datasets", datasets, "unstuck datasets report --files"),
)
OPERATIONS: tuple[Row, ...] = (
    (OPERATE, "ack", ack, "unstuck ack schedule/nightly/FAILED --reason 'the source is away'"),
    (OPERATE, "fleet", fleet, "unstuck fleet"),
    (OPERATE, "health", health, "unstuck health worker --max-age 30s"),
    (OPERATE, "metrics", metrics, "unstuck metrics --serve :9464"),
    (OPERATE, "web", web, "unstuck web --address 127.0.0.1:8620"),
    (OPERATE, "vacuum", vacuum, "unstuck vacuum --keep 10 --older-than 30d --dry-run"),
    (OPERATE, "compact", compact, "unstuck compact flights --target 128"),
    (OPERATE, "doctor", doctor, "unstuck doctor --json"),
)


stream = typer.Typer(help="Streams, from which datasets are loaded.", no_args_is_help=True)
app = typer.Typer(
    name="unstuck",
    epilog="Exit codes: 0 fine · 1 the job did not finish well · 2 usage or spec · 3 no such job · "
    "4 refused in this state · 5 Redis unreachable.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"unstuck {version('unstuck')}")
        raise typer.Exit


@app.callback()
def _unstuck(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Run Spark pipelines on Celery workers: no job gets stuck, and each shown state is true."""


def _add_rows(rows: Iterable[Row]) -> None:
    for panel, word, function, example in rows:
        app.command(word, rich_help_panel=panel, epilog=f"Example: {escape(example)}")(function)


def _add_commands(room: typer.Typer, panel: str | None, *targets: TargetKind) -> None:
    for target in targets:
        for command in COMMANDS[target].values():
            epilog = f"Example: {escape(command.example)}"
            room.command(command.name, rich_help_panel=panel, epilog=epilog)(function_of(command))


_add_rows(LOOKS)
_add_commands(app, CONTROL, TargetKind.JOB, TargetKind.GROUP)
_add_commands(schedule, None, TargetKind.SCHEDULE, TargetKind.BACKFILL)
_add_commands(stream, None, TargetKind.STREAM)
_add_commands(pool, None, TargetKind.POOL)
_add_commands(dead, None, TargetKind.DEAD_LETTER)
_add_rows(OPERATIONS)
_add_commands(app, OPERATE, TargetKind.DATASET)
app.add_typer(
    schedule,
    name="schedule",
    rich_help_panel=RUN,
    epilog="Example: unstuck schedule set nightly.yaml",
)
app.add_typer(
    stream,
    name="stream",
    rich_help_panel=OPERATE,
    epilog="Example: unstuck stream skip loads broken.json",
)
app.add_typer(pool, name="pool", rich_help_panel=OPERATE, epilog="Example: unstuck pool set jdbc 4")
app.add_typer(
    notify, name="notify", rich_help_panel=OPERATE, epilog="Example: unstuck notify test ops"
)
app.add_typer(dead, name="dead", rich_help_panel=OPERATE, epilog="Example: unstuck dead list")
