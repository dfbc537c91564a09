"""Output to people and programs: the two streams, times, states, tables and JSON.

Text of a job (errors, labels, reasons) is data: markup in it is not read, and its control
characters never reach the terminal.
"""

from __future__ import annotations

import datetime
import errno
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from unstuck.documents.json_text import json_text
from unstuck.graph.status_marks import MARKS
from unstuck.tasks.terminal_text import printable

# The reader of a pipe needs whole lines, not lines folded for a terminal.
PIPED_WIDTH = 1000
BAR = 16
GAP = 2  # columns between two columns of a table

STYLES = {
    state: {"grey": "dim", "red": "bold red"}.get(mark.colour, mark.colour)
    for state, mark in MARKS.items()
}


class PrintedConsole(Console):
    """A console that prints only safe text, and lets ``cli.main`` handle a closed pipe.

    A word that is longer than the terminal is wide gets no line break, so that it can be copied.
    Into a pipe it prints lines without trailing spaces, since Rich pads the cells of a table to
    ``PIPED_WIDTH``.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        if self.file.isatty():
            super().print(*objects, crop=False, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
        self.file.flush()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        options = options or self.options
        if isinstance(renderable, Text) and not (renderable.no_wrap or options.no_wrap):
            renderable = wrapped(renderable, options.max_width)
            options = options.update(
                width=max(options.max_width, *map(cell_len, renderable.plain.split("\n")))
            )
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, "the reader has gone")


def _console(stderr: bool) -> Console:
    tty = (sys.stderr if stderr else sys.stdout).isatty()
    return PrintedConsole(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if tty else PIPED_WIDTH,
        soft_wrap=not tty,
    )


stdout = _console(stderr=False)
stderr = _console(stderr=True)


def for_people(as_json: bool) -> Console:
    """Return the stream for sentences: standard output, or standard error if that holds JSON."""
    return stderr if as_json else stdout


def can_live(console: Console) -> bool:
    """Return True if a display can be redrawn in place."""
    return console.file.isatty() and not console.is_dumb_terminal


def emit(value: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def emit_line(value: Any) -> None:
    """Print one JSON document on one line of standard output, at once."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def longest_word(text: str) -> int:
    """Return the width of the longest word, in columns of a terminal."""
    return max(map(cell_len, text.split()), default=0)


def wrapped(text: Text, width: int) -> Text:
    """Break ``text`` between words at ``width`` columns; a longer word gets its own line."""
    breaks: list[int] = []
    used, words = 0, 0  # of the line
    for part in re.finditer(r"\n|\S+|[^\S\n]+", text.plain):
        if part[0] == "\n":
            used, words = 0, 0
            continue
        if words and not part[0].isspace() and used + cell_len(part[0]) > width:
            breaks.append(part.start())
            used = 0
        used += cell_len(part[0])
        words += not part[0].isspace()
    lines = text.divide(breaks)
    for line in lines[:-1]:
        line.rstrip()
    return Text("\n").join(lines)


def warn(warnings: Iterable[str]) -> None:
    """Warn about something valid that may be a mistake."""
    for warning in warnings:
        stderr.print(f"Warning: {warning}")


def hanging(console: Console, text: Text, indent: int) -> Text:
    """Indent all lines of ``text`` but the first by ``indent``, wrapped at the terminal's width."""
    lines = wrapped(text, console.width - indent) if console.is_terminal else text
    return Text("\n" + " " * indent).join(lines.split("\n", allow_blank=True))


def coloured(word: str, text: str | None = None) -> Text:
    """Return a state or status in its color."""
    return Text(word if text is None else text, STYLES.get(word, ""))


def bar(done: float, total: float, width: int = BAR) -> str:
    """Return ``▇▇▇▁▁``: full only at the end, and never empty once begun."""
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    filled = round(share * width)
    if 0 < share < 1:
        filled = min(max(filled, 1), width - 1)
    return "▇" * filled + "▁" * (width - filled)


def clock(at: float, timespec: str = "seconds") -> str:
    """Return a time for people: local, with the offset from UTC; empty for 0 (never)."""
    local = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone()
    return local.isoformat(sep=" ", timespec=timespec) if at else ""


def program(folder: Path) -> str:
    """Return how to call this program in ``folder``: ``unstuck``, or its path if not on the PATH.

    ``make demo`` runs it from a ``.venv`` that nobody has activated.
    """
    mine = Path(sys.executable).parent / "unstuck"
    on_path = shutil.which("unstuck")
    if not mine.is_file() or (on_path is not None and Path(on_path).resolve() == mine.resolve()):
        return "unstuck"
    return shlex.quote(str(mine.relative_to(folder) if mine.is_relative_to(folder) else mine))


class TextTable:
    """Rows of columns in which no id and no word is split.

    Where they are too wide for a terminal, the widest column is wrapped at words if it keeps half
    of the width. Else its cells stand below their rows.
    """

    def __init__(self, columns: Sequence[str], right: Collection[str]) -> None:
        self._columns = columns
        self._numbers = [name in right for name in columns]
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append(
            [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells]
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [Text(name, "bold") for name in self._columns]
        rows = [*([heads] if any(self._columns) else []), *self._rows]
        widths, wide = self._fitted_widths(rows, options.max_width)
        fitting = options.update(width=max(options.max_width, wide))
        for row in rows:
            columns = [
                Column(width=width, justify="right" if self._numbers[n] else "left")
                for n, width in widths.items()
            ]
            grid = Table.grid(*columns, padding=(0, GAP, 0, 0))
            grid.add_row(*(row[n] for n in widths))
            yield from console.render(grid, fitting)
            if row is not heads:
                yield from self._cells_below(console, row, widths)

    def _fitted_widths(
        self, rows: Sequence[Sequence[Text]], max_width: int
    ) -> tuple[dict[int, int], int]:
        """Choose the columns that stand beside each other.

        Returns: their widths by number, in order, and the width of all before one was wrapped.
        """
        widths = [
            max(cell_len(line) for row in rows for line in row[n].plain.split("\n"))
            for n in range(len(self._columns))
        ]
        beside = list(range(len(widths)))
        while (wide := sum(widths[n] + GAP for n in beside) - GAP) > max_width and len(beside) > 1:
            widest = max(beside[1:], key=widths.__getitem__)  # the first names the row
            left = max_width - (wide - widths[widest])
            if left >= max(max_width // 2, *(longest_word(row[widest].plain) for row in rows)):
                widths[widest] = left
                break
            beside.remove(widest)
        return {n: widths[n] for n in beside}, wide

    def _cells_below(
        self, console: Console, row: Sequence[Text], beside: Collection[int]
    ) -> Iterator[Text]:
        """Yield the cells of ``row`` for which there is no room beside the others."""
        for n, (name, cell) in enumerate(zip(self._columns, row, strict=True)):
            if n not in beside and cell:
                line = Text.assemble((f"{name.lower()} " if name else "", "dim"), cell)
                yield hanging(console, Text("    ").append_text(line), 4)


def table(*columns: str, right: Collection[str] = ()) -> TextTable:
    """Return an empty table; without a header if all names are empty. ``right``: number columns."""
    return TextTable(columns, right)
