"""Output to people and programs: the two streams, times, states, tables and JSON.

Text of a job (errors, labels, reasons) is data: markup in it is not read, and its control characters never reach the
terminal.
"""

from __future__ import annotations

import datetime
import errno
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unicodedata import category

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from unstuck.tasks.terminal import printable

PIPED_WIDTH = 1000  # what reads a pipe wants whole lines, not lines folded to a terminal that is not there
BAR = 16

# Other, format and separator characters that json.dumps leaves as they are.
_NOT_IN_JSON = {"Cc", "Cf", "Cs", "Zl", "Zp"}

_STATES = {
    "dim": ("PENDING", "WAITING", "SKIPPED"),
    "cyan": ("QUEUED",),
    "blue": ("RUNNING",),
    "yellow": ("RETRYING", "BACKOFF"),
    "magenta": ("PAUSING", "PAUSED", "STOPPING", "STOPPED", "CANCELING", "CANCELED"),
    "green": ("SUCCEEDED", "FINISHED"),
    "bold red": ("FAILED",),
}
STYLES = {state: style for style, states in _STATES.items() for state in states}


class _Console(Console):
    """Prints what a terminal may be shown, and leaves it to ``cli.main`` to end when the reader has gone.

    Into a pipe it prints lines without trailing spaces, since Rich pads the cells of a table to ``PIPED_WIDTH``.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        if self.file.isatty():
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
        self.file.flush()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, "the reader has gone")


def _console(stderr: bool) -> Console:
    tty = (sys.stderr if stderr else sys.stdout).isatty()
    return _Console(
        stderr=stderr, markup=False, highlight=False, emoji=False, width=None if tty else PIPED_WIDTH, soft_wrap=not tty
    )


stdout = _console(stderr=False)
stderr = _console(stderr=True)


def for_people(as_json: bool) -> Console:
    """The stream for sentences: standard output, or standard error where standard output holds JSON."""
    return stderr if as_json else stdout


def can_live(console: Console) -> bool:
    """True where a display can be redrawn in place."""
    return console.file.isatty() and not console.is_dumb_terminal


def emit(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(_json(value, indent=2) + "\n")


def emit_line(value: Any) -> None:
    """One JSON document on one line of standard output, at once."""
    sys.stdout.write(_json(value) + "\n")
    sys.stdout.flush()


def _json(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON in which characters that a terminal would obey are escaped, and others can be read."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(json.dumps(c)[1:-1] if c != "\n" and category(c) in _NOT_IN_JSON else c for c in text)


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``, ended with … if there are more."""
    return text if len(text) <= limit else f"{text[: limit - 2].rstrip()} …"


def first_line(text: str) -> str:
    """The first line of an error, with … where there are more; ``show`` and the log have the whole."""
    lines = printable(text).strip().splitlines() or [""]
    return " ".join(lines[0].split()) + (" …" if len(lines) > 1 else "")


def coloured(word: str, text: str | None = None) -> Text:
    """A state or status in its colour."""
    return Text(word if text is None else text, STYLES.get(word, ""))


def bar(done: float, total: float, width: int = BAR) -> str:
    """``▇▇▇▁▁``: never full before it is, never empty once begun."""
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    filled = round(share * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "▇" * filled + "▁" * (width - filled)


def clock(at: float, timespec: str = "seconds") -> str:
    """A time for people: local, with the offset from UTC; empty for a time that never was (0)."""
    local = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone()
    return local.isoformat(sep=" ", timespec=timespec) if at else ""


def iso(at: float | None) -> str | None:
    """A time for programs: ISO 8601 in UTC, with Z; None for a time that never was."""
    if not at:
        return None
    utc = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def program(folder: Path) -> str:
    """How a person in ``folder`` calls this program: ``unstuck``, or where it lies if no shell would find it.

    ``make demo`` runs it from a ``.venv`` that nobody has activated.
    """
    mine = Path(sys.executable).parent / "unstuck"
    found = shutil.which("unstuck")
    if not mine.is_file() or (found is not None and Path(found).resolve() == mine.resolve()):
        return "unstuck"
    return shlex.quote(str(mine.relative_to(folder) if mine.is_relative_to(folder) else mine))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table of plain columns; those in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def count_of(count: int, what: str) -> str:
    """``1 row``, ``1,200 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
