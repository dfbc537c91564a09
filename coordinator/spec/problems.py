"""A problem of a job spec: its place, and what was expected there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from unstuck.tasks.errors import UnstuckError

Loc = tuple[str | int, ...]

SHOWN = 50  # problems written out by str(); all that were collected are in SpecError.problems
MAX_PROBLEMS = 1000  # collected of one kind; a hostile spec can hold half a million
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def path_text(loc: Loc) -> str:
    """Return a place as text, such as ``groups[2].steps[0].sql`` or ``conf["spark.sql.x"]``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _WORD.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shorten(part, quote=chr(34))}]"
    return text


def shorten(text: str, limit: int = 60, quote: str = "'") -> str:
    """Return ``text`` quoted, on one line, printable, and shortened."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return quote + "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut) + quote


def describe(value: Any) -> str:
    """Describe an unexpected value: ``the number 8``, ``a list``, ``'a/b'``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        try:
            return f"the number {shorten(str(value), quote='')}"
        except ValueError:  # more digits than Python is willing to write out
            return "a huge number"
    if isinstance(value, str):
        return shorten(value) if value else "empty text"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a Python {type(value).__name__}"


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'clean'?`` if a similar name is known, else nothing."""
    near = difflib.get_close_matches(word[:100], list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Return ``a, b, c and 4 more``."""
    every = list(names)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return ``1 file`` or ``2 files``; ``nouns`` is a plural that does not just add an ``s``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One thing that is wrong with a spec.

    Attributes:
        message: what is wrong and what was expected.
        loc: keys and indexes from the top of the spec to the place.
        on_key: the problem is the key itself, not the value under it.
        source: the file, as the user named it; empty for a spec that is a Python value.
        line, column: counted from 1; None where the place has no text of its own.
        line_inside: of a value of several lines, such as a statement, counted from 1; 0 if it is
            about the whole.
    """

    message: str
    loc: Loc = ()
    on_key: bool = False
    source: str = ""
    line: int | None = None
    column: int | None = None
    line_inside: int = 0

    @property
    def path(self) -> str:
        return path_text(self.loc)

    @property
    def position(self) -> tuple[int, int]:
        """Its line and column; 0 where the place has no text of its own."""
        return self.line or 0, self.column or 0

    def to_json(self) -> dict[str, Any]:
        """Return the problem for ``unstuck validate --json``."""
        place = {"file": self.source or None, "line": self.line, "column": self.column}
        return {**place, "path": self.path, "message": self.message}

    def __str__(self) -> str:
        place = self.source
        if self.line is not None:
            place += f":{self.line}" if self.column is None else f":{self.line}:{self.column}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


@dataclass(frozen=True, slots=True)
class Written:
    """A spec as somebody wrote it, in a file or in Python.

    Attributes:
        values: plain values, which may be wrong.
        located: gives a problem its file and line.
        problems: of the text alone, which leave the rest readable.
        folder: where ``sql_file:`` is looked for; None: it is refused.
    """

    values: Any
    located: Callable[[SpecProblem], SpecProblem]
    problems: tuple[SpecProblem, ...] = ()
    folder: Path | None = None


class SpecError(UnstuckError):
    """The job spec is wrong; ``problems`` says where, and ``str()`` has one line for each."""

    code = "SPEC_INVALID"

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(sorted(problems, key=attrgetter("position")))
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"… and {len(self.problems) - SHOWN} more problems")
        return "\n".join(lines)
