"""The table of commands: the module, the help and an example for each word.

``unstuck --help`` and completion read the table alone. A command is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Self

import typer
from typer.core import TyperCommand, TyperGroup

from unstuck.coordinator.command_table import COMMANDS, TargetKind


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """A command, or a group of commands, at the top of the command line.

    Attributes:
        help: a sentence for the list. The docstring of a command has the details.
        source: ``module:name`` in this package: the function of a command, or the `typer.Typer` of
            a group; empty for a command of the command table.
        example: the words after ``unstuck`` and the command; empty for a command of the table.
        targets: those of the command table whose commands a group has; or of its command, one.
    """

    help: str
    source: str = ""
    example: str = ""
    targets: tuple[TargetKind, ...] = ()


_JOB, _GROUP = (TargetKind.JOB,), (TargetKind.GROUP,)
# By panel of the help, and by word.
PANELS: Mapping[str, Mapping[str, ListedCommand]] = {
    "Run": {
        "run": ListedCommand(
            "Run a job in this process, without a fleet.",
            "specs.run:run",
            "flights.yaml --param year=2013",
        ),
        "submit": ListedCommand(
            "Submit a job to the fleet.",
            "specs.submit:submit",
            "flights.yaml --param year=2013 --wait",
        ),
        "validate": ListedCommand(
            "Check a job spec without submitting it.", "specs.validate:validate", "flights.yaml"
        ),
        "up": ListedCommand("Run a local fleet in the foreground.", "ops.local:up", "--workers 2"),
        "schedule": ListedCommand(
            "Repeat jobs. Each run of a schedule is an ordinary job.",
            "jobs.schedule:schedule",
            "set nightly.yaml",
            (TargetKind.SCHEDULE, TargetKind.BACKFILL),
        ),
    },
    "Inspect": {
        "now": ListedCommand(
            "Show problems, running jobs and ended jobs.", "jobs.now:now", "--json"
        ),
        "list": ListedCommand(
            "List jobs, newest first.", "jobs.listing:list_jobs", "--status RUNNING --since 2h"
        ),
        "show": ListedCommand(
            "Show one job and the errors of its groups.", "jobs.look:show", "flights"
        ),
        "watch": ListedCommand("Watch a job until it ends.", "jobs.watch:watch", "last"),
        "why": ListedCommand("Explain what a job waits for.", "jobs.look:why", "flights"),
        "events": ListedCommand(
            "Show the event log of a job.", "jobs.watch:events", "last --follow"
        ),
        "logs": ListedCommand(
            "Show what a job's attempts logged and printed.",
            "jobs.logs:logs",
            "flights 'by_month[3]' --follow",
        ),
        "datasets": ListedCommand(
            "Show the published datasets.", "warehouse.datasets:datasets", "report --files"
        ),
    },
    "Control": {
        "pause": ListedCommand("Start no more groups of a job.", targets=_JOB),
        "resume": ListedCommand("Continue a PAUSED or HALTED job.", targets=_JOB),
        "stop": ListedCommand("Let running groups finish, and end the job.", targets=_JOB),
        "cancel": ListedCommand("Interrupt running groups, and end the job.", targets=_JOB),
        "force-stop": ListedCommand("End a job at once, without its workers.", targets=_JOB),
        "retry": ListedCommand("Make a new job of one that did not finish.", targets=_JOB),
        "alter": ListedCommand("Change values of a job's spec.", targets=_JOB),
        "skip": ListedCommand("Skip a group of a job.", targets=_GROUP),
        "rerun": ListedCommand("Run a group again, and everything after it.", targets=_GROUP),
    },
    "Operate": {
        "ack": ListedCommand(
            "Acknowledge a problem until it changes.", targets=(TargetKind.PROBLEM,)
        ),
        "fleet": ListedCommand("Show runners, coordinators and queues.", "ops.show_fleet:fleet"),
        "health": ListedCommand(
            "Check the processes of this host, for probes.",
            "ops.health:health",
            "worker --max-age 30s",
        ),
        "metrics": ListedCommand(
            "Print or serve metrics for Prometheus.", "ops.metrics:metrics", "--serve :9464"
        ),
        "web": ListedCommand(
            "Serve the page of the fleet.", "ops.web:web", "--address 127.0.0.1:8620"
        ),
        "vacuum": ListedCommand(
            "Remove files that only old versions have.",
            "warehouse.housekeeping:vacuum",
            "--keep 10 --older-than 30d --dry-run",
        ),
        "compact": ListedCommand(
            "Join the small files of a dataset.",
            "warehouse.housekeeping:compact",
            "flights --target 128",
        ),
        "doctor": ListedCommand(
            "Find what is wrong with an installation.", "ops.doctor:doctor", "--json"
        ),
        "restore": ListedCommand(
            "Publish an older version of a dataset again.", targets=(TargetKind.DATASET,)
        ),
        "stream": ListedCommand(
            "Control the streams from which datasets are loaded.",
            "ops.streams:stream",
            "skip loads broken.json",
            (TargetKind.STREAM,),
        ),
        "pool": ListedCommand(
            "Show and set pools of slots, which groups take with `pool: NAME`.",
            "ops.pools:pool",
            "set jdbc 4",
            (TargetKind.POOL,),
        ),
        "notify": ListedCommand("Test and list notices.", "ops.notify:notify", "test ops"),
        "dead": ListedCommand(
            "Handle unreadable reports, unsent notices and refused submits.",
            "ops.dead_letters:dead",
            "list",
            (TargetKind.DEAD_LETTER,),
        ),
    },
}


class CommandGroup(TyperGroup):
    """The commands of `PANELS`: it lists the entries, and imports a command that is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, entries in PANELS.items():
            for word, entry in entries.items():
                self.add_command(TyperCommand(word, help=entry.help, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word, _, rest = super().resolve_command(ctx, args)
        return word, None if word is None else imported(word), rest

    def import_all(self) -> Self:
        """Import every command, for tests and reference pages."""
        self.commands = {word: imported(word) for word in self.commands}
        return self


@cache
def imported(word: str) -> Any:
    """Import the command or the group of commands ``word``."""
    (entry,) = (entries[word] for entries in PANELS.values() if word in entries)
    module, _, name = entry.source.partition(":")
    source = getattr(import_module(f"unstuck.cli.{module}"), name) if module else None
    epilog = _epilog(f"unstuck {word} {entry.example}")
    room = typer.Typer(rich_markup_mode="rich", add_completion=False, callback=_unstuck)
    if isinstance(source, typer.Typer):
        room.add_typer(source, name=word, help=entry.help, epilog=epilog)
    elif source is not None:
        room.command(word, epilog=epilog)(source)
    for target in entry.targets:
        _add_declared(source or room, target, "" if source else word)
    group: Any = typer.main.get_command(room)
    return group.commands[word]


def _add_declared(room: typer.Typer, target: TargetKind, word: str) -> None:
    """Add the command ``word`` of the command table for ``target``, or all if ``word`` is empty."""
    from unstuck.cli.control import function_of  # its imports declare the commands

    for command in COMMANDS[target].values():
        if word in ("", command.name):
            room.command(command.name, epilog=_epilog(command.example))(function_of(command))


def _epilog(example: str) -> str:
    from rich.markup import escape

    return f"Example: {escape(example.strip())}"


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"unstuck {version('unstuck')}")
        raise typer.Exit


def _unstuck(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Run Spark pipelines on Celery workers: no job gets stuck, and each shown state is true."""


app = typer.Typer(
    name="unstuck",
    cls=CommandGroup,
    callback=_unstuck,
    epilog="Exit codes: 0 fine · 1 the job did not finish well · 2 usage or spec · 3 no such job · "
    "4 refused in this state · 5 Redis unreachable.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
