"""``unstuck run`` runs a job in this process, without Redis or a fleet, with the same outcome."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from contextlib import ExitStack, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from unstuck.cli.jobs.watch import FRAMES, event_text, outcome
from unstuck.cli.options import SPEC, AsJson, Params, TakeOver, read_spec
from unstuck.cli.render.job_tree import job_tree
from unstuck.cli.render.terminal import (
    PrintedConsole,
    can_live,
    emit,
    for_people,
    hanging,
    stderr,
    warn,
)
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing.staging_gc import folder_of
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.selection import select
from unstuck.doctor.host_facts import in_the_way
from unstuck.exits import ExitCode
from unstuck.read_model.job import JobInfo
from unstuck.tasks.log_lines import work_here
from unstuck.tasks.settings import Settings

if TYPE_CHECKING:
    from unstuck.in_process.run_job import InProcess

GROUP = "A name, a pattern (load_*), or a member of a fork (by_month[2]); may be repeated."


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help=SPEC)],
    param: Params = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="GROUP", help=f"Run these alone. {GROUP}")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="GROUP", help="Run these, and what comes after them."),
    ] = None,
    until: Annotated[
        list[str] | None,
        typer.Option("--until", metavar="GROUP", help="Run these, and what comes before them."),
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            "--warehouse", metavar="PATH", help="Where to publish; by default UNSTUCK_WAREHOUSE."
        ),
    ] = None,
    take_over: TakeOver = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave the staging of the job, with the logs of its attempts."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job in this process: no Redis, no fleet, the same outcome.

    Exit code 1 if it does not finish well.
    """
    from unstuck.in_process.limits_of_one import notes_on_one_process
    from unstuck.in_process.run_job import (
        InProcess,
    )  # which imports the worker's side, for this command alone

    job_spec, settings = read_spec(spec, param), Settings()
    console = for_people(as_json)
    groups = [tuple(names or ()) for names in (only, after, until)]
    part = select(job_spec, *groups) if any(groups) else None
    for sentence in notes_on_one_process(job_spec, part):
        stderr.print(f"Note: {sentence}", soft_wrap=True)
    warn([str(doubt) for doubt in doubts(job_spec)])
    here = InProcess(_usable(warehouse or settings.warehouse), settings=settings)
    _prepare_streams(here)
    display = _Live(here, console) if can_live(console) else _Lines(here, console)
    with (
        _Signals() as signals,
        redirect_stdout(sys.stderr) if as_json else nullcontext(),  # steps print, too
        here,
        display,
    ):
        _log_to_standard_error()
        ended = here.run(
            job_spec,
            only=groups[0],
            from_=groups[1],
            until=groups[2],
            take_over=take_over,
            keep=keep,
            on_change=display.show,
            on_input=display.step_aside,
        )
    for text in outcome(ended.view):
        console.print(text, soft_wrap=True)
    if keep:
        console.print(f"  staged  {ended.view.warehouse}/{folder_of(ended.job_id)}", soft_wrap=True)
    if as_json:
        emit(ended.view)
    if ended.status is Status.CANCELED:
        raise typer.Exit(signals.code)
    raise typer.Exit(ExitCode.FINE if ended.finished else ExitCode.NOT_WELL)


def _usable(place: str) -> str:
    """Return the address of a warehouse that can be used. Raises: BadRequest."""
    wrong = "" if "://" in place else in_the_way(Path(place).absolute())
    if wrong:
        raise BadRequest(
            f"there can be no warehouse at {place}: {wrong}. Name a folder with --warehouse"
        )
    return place


def _prepare_streams(here: InProcess) -> None:
    """Flush each line for readers of a pipe, and clean the standard streams of secrets.

    This is for good: a thread that a step leaves behind may print until this process ends.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.stdout, sys.stderr = (
        cast(TextIO, _Clean(stream, here)) for stream in (sys.stdout, sys.stderr)
    )


class _Signals:
    """Within the block, SIGTERM and SIGHUP end the run like Ctrl-C. Ignored signals stay ignored.

    Attributes:
        code: the exit code of a run that was ended.
    """

    code: int = ExitCode.INTERRUPTED

    def __enter__(self) -> _Signals:
        self._terminal = [fd for fd in (1, 2) if os.isatty(fd)]
        unhandled = [
            number
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_DFL
        ]
        self._before = {number: signal.signal(number, self._end) for number in unhandled}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self.code != ExitCode.INTERRUPTED and isinstance(error, KeyboardInterrupt):
            raise typer.Exit(self.code) from None

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.code = 128 + number
        if (
            number == signal.SIGHUP
        ):  # a terminal that is gone fails each write, and the rest must still be done
            for fd in self._terminal:
                os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        if not callable(
            signal.getsignal(signal.SIGINT)
        ):  # a shell has let a background process ignore it
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)


class _Shown(logging.Formatter):
    """Lines of steps unchanged; of Unstuck, the traceback of a failed step, once."""

    def __init__(self) -> None:
        super().__init__("%(message)s")
        self._seen: set[str] = set()

    def format(self, record: logging.LogRecord) -> str:
        trace = record.exc_text if record.name.startswith("unstuck.") else None
        if not trace:
            return super().format(record)
        if trace not in self._seen:
            self._seen.add(trace)
            return trace
        of = work_here()
        where = f"{of['group']}, attempt {of['attempt']}: " if "group" in of else ""
        return f"{where}the same error again"


def _log_to_standard_error() -> None:
    """Log the messages of steps to standard error. Unstuck itself uses the tree or the events."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Shown())
    handler.addFilter(
        lambda record: not record.name.startswith("unstuck.") or record.levelno >= logging.ERROR
    )
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection


class _Lines:
    """Prints a line for each event."""

    def __init__(self, here: InProcess, console: Console) -> None:
        self._here, self._console, self._shown = here, console, 0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, view: JobInfo) -> None:
        events = self._here.events(view.id, self._shown)
        self._shown += len(events)
        for event in events:
            self._console.print(hanging(self._console, event_text(event), 4))

    def step_aside(self) -> None: ...


class _Stream(io.TextIOBase):
    """Wraps a standard stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def flush(self) -> None:
        self._stream.flush()


class _Clean(_Stream):
    """Removes the secrets that any step of this process was given."""

    def __init__(self, stream: TextIO, here: InProcess) -> None:
        super().__init__(stream)
        self._here = here

    def write(self, text: str) -> int:
        self._stream.write(self._here.clean(text))
        return len(text)


class _Above(_Stream):
    """A standard stream while the tree is shown: lines appear above the tree."""

    def __init__(self, stream: TextIO, display: _Live) -> None:
        super().__init__(stream)
        self._display, self._line = display, ""

    def write(self, text: str) -> int:
        *lines, self._line = f"{self._line}{text}".split("\n")
        if not self._display.stands:
            self._stream.write("\n".join([*lines, self._line]))
            self._line = ""
        elif lines:
            self._display.console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
        return len(text)


class _Live:
    """The tree of ``watch``, which releases the terminal to a step that reads from it."""

    def __init__(self, here: InProcess, console: Console) -> None:
        self._here = here
        # Of its own file: while a step runs, `sys.stdout` leads into the log of its attempt.
        self.console = PrintedConsole(file=console.file, markup=False, highlight=False, emoji=False)
        self._view: JobInfo | None = None
        self._events_seen = -1  # when it stepped aside
        options: dict[str, Any] = {
            "redirect_stdout": False,
            "redirect_stderr": False,
            "transient": True,
        }
        self._live = Live(
            console=self.console, get_renderable=self._frame, refresh_per_second=FRAMES, **options
        )
        self._streams = ExitStack()

    @property
    def stands(self) -> bool:
        """Whether the tree is on the screen."""
        return self._live.is_started

    def __enter__(self) -> _Live:
        self._streams.enter_context(redirect_stdout(cast(TextIO, _Above(sys.stdout, self))))
        self._streams.enter_context(redirect_stderr(cast(TextIO, _Above(sys.stderr, self))))
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._streams.close()
        if self._view is not None:
            self.console.print(job_tree(self._view, self._view.at, self.console.height - 2))

    def show(self, view: JobInfo) -> None:
        self._view = view
        if not self.stands and len(self._here.events(view.id)) != self._events_seen:
            self._live.start()

    def step_aside(self) -> None:
        if self.stands and self._view is not None:
            self._events_seen = len(self._here.events(self._view.id))
            self._live.stop()

    def _frame(self) -> RenderableType:
        view = self._view
        return (
            Text()
            if view is None
            else job_tree(view, self._here.clock(), self.console.height - 2, cut=True)
        )
