"""The table of dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from unstuck.cli.render.terminal import TextTable, clock, table
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.tasks.protocol.failure import shorten
from unstuck.views.words import one_line

MAX_WIDTH = 200  # characters of one value; `dead show` and --json have it whole


def dead_letter_table(letters: Sequence[DeadLetter]) -> TextTable:
    listing = table("ID", "WHEN", "KIND", "OF", "DELIVERIES", "REASON", right=("DELIVERIES",))
    for letter in letters:
        listing.add_row(
            letter.id,
            clock(letter.at),
            Text(shortened_value(letter.kind)),
            Text(shortened_value(letter.subject)),
            "" if letter.task else str(letter.deliveries or "?"),
            Text(shortened_value(letter.reason)),
        )
    return listing


def shortened_value(text: str) -> str:
    """Return a value as one table cell. A long value loses its middle."""
    return one_line(shorten(text, MAX_WIDTH))
