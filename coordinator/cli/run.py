"""``unstuck run`` runs a job in this process: without Redis, without a fleet, and with the same outcome."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import AsJson, Params, read_spec
from unstuck.coordinator.cli.render.job_tree import job_tree
from unstuck.coordinator.cli.render.json import job_json
from unstuck.coordinator.cli.render.terminal import PrintedConsole, can_live, emit, for_people, hanging
from unstuck.coordinator.cli.submit import SPEC
from unstuck.coordinator.cli.watch import FRAMES, event_text, outcome
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.views.job_views import JobView
from unstuck.tasks.settings import Settings

if TYPE_CHECKING:
    from unstuck.in_process.run import InProcess

Show = Callable[[JobView], None]


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help=SPEC)],
    param: Params = None,
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", metavar="PATH", help="Where to publish; by default UNSTUCK_WAREHOUSE.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job in this process, now: no Redis, no fleet, the same outcome. Exit code 1 if it does not finish well."""
    from unstuck.in_process.run import InProcess  # which imports the worker's side, for this command alone

    job_spec, settings = read_spec(spec, param), Settings()
    console = for_people(as_json)
    _log_to_standard_error()
    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),  # steps print, too
        InProcess(warehouse or settings.warehouse, settings=settings) as here,
        _live(here, console) if can_live(console) else nullcontext(_lines(here, console)) as show,
    ):
        ended = here.run(job_spec, on_change=show)
    for text in outcome(ended.view):
        console.print(text, soft_wrap=True)
    if as_json:
        emit(job_json(ended.view))
    if ended.status is Status.CANCELED:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(ExitCode.FINE if ended.finished else ExitCode.NOT_WELL)


def _log_to_standard_error() -> None:
    """Show what steps log, and the traceback of one that fails."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(lambda record: not record.name.startswith("unstuck.") or record.levelno >= logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _lines(here: InProcess, console: Console) -> Show:
    """A line for each event."""
    shown = 0

    def show(view: JobView) -> None:
        nonlocal shown
        events = here.events(view.job.id, shown)
        shown += len(events)
        for event in events:
            console.print(hanging(console, event_text(event), 4))

    return show


@contextmanager
def _live(here: InProcess, console: Console) -> Iterator[Show]:
    """The tree of ``watch``, below what steps print."""
    latest: list[JobView] = []
    # Of its own file: while a step runs, `sys.stdout` leads into the log of its attempt.
    own = PrintedConsole(file=console.file, markup=False, highlight=False, emoji=False)

    def frame() -> RenderableType:
        return job_tree(latest[-1], here.clock(), own.height - 2, cut=True) if latest else Text()

    try:
        with Live(console=own, get_renderable=frame, refresh_per_second=FRAMES, transient=True):
            yield lambda view: latest.__setitem__(slice(None), [view])
    finally:
        if latest:
            own.print(job_tree(latest[-1], latest[-1].at, own.height - 2))
