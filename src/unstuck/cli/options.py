"""The arguments that several commands share: jobs, statuses, times, parameters, confirmation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from unstuck.cli.render.terminal import TextTable, stderr
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, Written, listed, suggestion
from unstuck.exits import ExitCode
from unstuck.graph.svg import Svg, on_paper
from unstuck.tasks.duration import since_time as moment
from unstuck.views.words import count_of

if TYPE_CHECKING:
    from unstuck.coordinator.spec.job_params import UnparsedText
    from unstuck.coordinator.spec.model import JobSpec

T = TypeVar("T")
SHOWN = 20  # targets of a command, listed before the user confirms
SPEC = "A job spec, YAML or JSON; `-` is standard input; module:job is a job in Python."
STANDARD_INPUT = Path("-")
JOB_IN_PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:job


def read_status(word: str) -> Status:
    """Parse a status. Raises: typer.BadParameter."""
    try:
        return Status(word.upper())
    except ValueError:
        statuses = [str(status) for status in Status]
        near = suggestion(word.upper(), statuses).replace("'", "")
        raise typer.BadParameter(
            f"{word!r} is no status{near or f'; there are {listed(statuses)}'}"
        ) from None


def since_time(text: str) -> float:
    """Return seconds since the epoch for ``2h`` (ago) or an ISO time (local by default).

    Raises: typer.BadParameter: it is neither.
    """
    try:
        return moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def host_and_port(address: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``:PORT``; the host is empty for all interfaces.

    Raises: BadRequest.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise BadRequest(
            f"{address!r} is no address to listen at; expected HOST:PORT or :PORT, as "
            "127.0.0.1:8620"
        )
    return host.strip("[]"), int(port)


def params_of(
    texts: list[str], option: str = "--param", form: str = "NAME=VALUE"
) -> dict[str, UnparsedText]:
    """Return ``{"year": UnparsedText("2013")}`` for ``["year=2013"]``. Raises: BadParameter."""
    from unstuck.coordinator.spec.job_params import UnparsedText

    params = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        params[name] = UnparsedText(value)
    return params


def read_spec(
    path: Path, params: list[str] | None, *, scheduled: bool = False, unfinished: bool = False
) -> JobSpec:
    """Read a spec from a file, standard input, or a job in Python (``module:job``).

    Raises: SpecError, BadParameter.

    Args:
        scheduled: as for `JobSpec.from_file`.
        unfinished: required parameters need no value yet.
    """
    from unstuck.coordinator.spec.model import JobSpec

    values = None if unfinished else params_of(params or [])
    return JobSpec.from_written(written_spec(path), values, scheduled=scheduled)


def written_spec(path: Path) -> Written:
    """Read the values of a spec as written in a file, standard input, or a job in Python.

    Raises: SpecError.
    """
    if JOB_IN_PYTHON.fullmatch(str(path)) and not path.exists():
        from unstuck.job_builder import load_job

        return load_job(str(path)).written()
    from unstuck.coordinator.spec.text import MAX_BYTES, read_bytes, read_file, written_in

    if path.suffix == ".py":
        raise SpecError(
            [SpecProblem(f"is Python: name its job, as in {path.stem}:job", source=str(path))]
        )
    if path != STANDARD_INPUT:
        return read_file(path)
    source = "standard input"
    if sys.stdin is None:
        raise BadRequest("standard input is closed, and `-` reads the spec from it")
    return written_in(read_bytes(sys.stdin.buffer.read(MAX_BYTES + 1), source), source, Path.cwd())


def _statuses(begun: str) -> list[str]:
    return [status for status in Status if status.startswith(begun.upper())]


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="An id, the beginning of one, or a job's name (its newest job)."
    ),
]
LookArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An id, the beginning of one, a job's name (its newest job), a key, or `last`.",
    ),
]
Statuses = Annotated[
    list[Status] | None,
    typer.Option(
        "--status",
        parser=read_status,
        metavar="STATUS",
        autocompletion=_statuses,
        help="Only jobs in this status; may be given several times.",
    ),
]
Named = Annotated[
    str | None, typer.Option("--name", metavar="GLOB", help="Only jobs whose name matches.")
]
Since = Annotated[
    float | None,
    typer.Option(
        "--since",
        parser=since_time,
        metavar="TIME",
        help="Only jobs submitted since: 2h, 7d, or 2013-12-31T12:00.",
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="NAME=VALUE", help="Set a parameter of the spec."),
]
Because = Annotated[str, typer.Option("--reason", help="Why, for the event log.")]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Publish also datasets that another job owns, and own them from then on.",
    ),
]
By = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Who asks, for the event log; by default user@host."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
OtherWarehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse", metavar="URI", help="Another one than UNSTUCK_WAREHOUSE (./warehouse)."
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Graph = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        metavar="FILE",
        help="Draw its graph into this file, as SVG; - is standard output.",
        show_default=False,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")]


def write_picture(picture: Svg, file: Path) -> None:
    """Write a picture to a file or to standard output.

    Raises: typer.BadParameter: it cannot be written.
    """
    if file == STANDARD_INPUT:
        sys.stdout.write(on_paper(picture))
        return
    try:
        file.write_text(on_paper(picture), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"{file} cannot be written: {error.strerror}", param_hint="--graph"
        ) from None
    stderr.print(f"The graph is in {file}.", soft_wrap=True)


def confirm(
    word: str,
    targets: Sequence[T],
    what: str,
    listing: Callable[[Sequence[T]], TextTable],
    yes: bool,
) -> None:
    """Show the targets of a command, and let the user confirm.

    Args:
        word: the command, and ``what`` it is for, in the singular.
        listing: makes a table of the first few.

    Raises:
        BadRequest: there is no terminal.
        typer.Exit: the answer is no.
    """
    if not targets:
        return
    stderr.print(listing(targets[:SHOWN]))
    if len(targets) > SHOWN:
        stderr.print(f"and {len(targets) - SHOWN:,} more")
    if yes:
        return
    count = count_of(len(targets), what)
    if not (sys.stdin.isatty() and stderr.is_terminal):
        raise BadRequest(
            f"{word} would change {count}, and there is no terminal to confirm. Nothing was "
            "changed; give --yes to confirm."
        )
    try:
        answer = stderr.input(f"{word}: {count}, as listed? [y/N] ", markup=False, emoji=False)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        stderr.print("Nothing was changed.")
        raise typer.Exit(ExitCode.NOT_WELL)
