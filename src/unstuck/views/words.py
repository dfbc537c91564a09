"""Short texts: in one line, cut, or with a count (pure)."""

from __future__ import annotations

from unstuck.tasks.terminal_text import printable

FIRST_LINE = 300  # characters of the first line of an error


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def shortened(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, cut after a word, with … for the rest."""
    if len(text) <= limit:
        return text
    begun, space, _ = text[: limit - 1].rpartition(" ")
    return f"{begun.rstrip() if space else text[: limit - 2]} …"


def first_line(text: str) -> str:
    """Return the first line of an error, with … for the rest, which ``show`` and the log have."""
    lines = printable(text).strip().splitlines() or [""]
    first = shortened(" ".join(lines[0].split()), FIRST_LINE)
    return first + (" …" if len(lines) > 1 and not first.endswith(" …") else "")


def count_of(count: int, what: str) -> str:
    """Return ``1 row``, ``1,200 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
