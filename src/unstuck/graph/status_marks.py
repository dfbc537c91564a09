"""The sign and the color of each status, the same on the terminal, in pictures and on the page.

Each color has a sign, because not everybody can distinguish colors.
"""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """The mark of a status.

    Attributes:
        symbol: one character.
        colour: the name of the color.
        line, fill: the color on white paper.
    """

    symbol: str
    colour: str
    line: str
    fill: str


_COLOURS = {  # line, fill
    "grey": ("#6b7280", "#f1f3f5"),
    "cyan": ("#0e7490", "#dff4f9"),
    "blue": ("#1d4ed8", "#e1eaff"),
    "yellow": ("#b45309", "#fdf0d5"),
    "magenta": ("#7e22ce", "#f3e8ff"),
    "green": ("#15803d", "#e0f5e6"),
    "red": ("#b91c1c", "#fde4e4"),
}
_SIGNS = {
    "WAITING": "○ grey",
    "QUEUED": "◌ cyan",
    "RUNNING": "● blue",
    "BACKOFF": "↻ yellow",
    "CANCELING": "◍ magenta",
    "SUCCEEDED": "✓ green",
    "FAILED": "✗ red",
    "CANCELED": "⊘ magenta",
    "SKIPPED": "– grey",
    "PENDING": "○ grey",
    "RETRYING": "↻ yellow",
    "PAUSING": "◍ magenta",
    "PAUSED": "‖ magenta",
    "HALTED": "! red",
    "STOPPING": "◍ magenta",
    "STOPPED": "■ magenta",
    "FINISHED": "✓ green",
    "LOST": "? yellow",
    "RELEASED": "↩ grey",
    # Runners, coordinators, queues, schedules, and findings of the doctor.
    "IDLE": "○ grey",
    "BUSY": "● blue",
    "SILENT": "? red",
    "STALLED": "! red",
    "UNFIT": "! red",
    "LATE": "! red",
    "BEHIND": "! red",
    "OK": "✓ green",
    "WARNING": "! yellow",
    "PROBLEM": "✗ red",
}
UNKNOWN = Mark("·", "grey", *_COLOURS["grey"])
MARKS = {name: Mark(text[0], text[2:], *_COLOURS[text[2:]]) for name, text in _SIGNS.items()}


def mark(status: str) -> Mark:
    """Return the mark of a status, a state, an outcome of an attempt, or a level of a finding."""
    return MARKS.get(status.upper(), UNKNOWN)


def css_class(status: str) -> str:
    """Return the CSS class of a status: ``s-failed``."""
    return f"s-{status.lower()}"
