"""Texts of jobs in a few words: in one line, cut, counted. Pure."""

from __future__ import annotations

from unstuck.tasks.terminal_text import printable

FIRST_LINE = 300  # characters of an error where its first line is enough


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``, ended with … after a word if there are more."""
    if len(text) <= limit:
        return text
    begun, space, _ = text[: limit - 1].rpartition(" ")
    return f"{begun.rstrip() if space else text[: limit - 2]} …"


def first_line(text: str) -> str:
    """The first line of an error, with … where there is more; ``show`` and the log have the
    whole.
    """
    lines = printable(text).strip().splitlines() or [""]
    first = shortened(" ".join(lines[0].split()), FIRST_LINE)
    return first + (" …" if len(lines) > 1 and not first.endswith(" …") else "")


def count_of(count: int, what: str) -> str:
    """``1 row``, ``1,200 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
