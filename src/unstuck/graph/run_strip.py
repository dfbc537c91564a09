"""Draws the last runs of a schedule: a bar for each, as high as its duration, the newest on the
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unstuck.graph.status_marks import css_class, mark
from unstuck.graph.svg import Svg, element, linked, picture, text, title

WIDTH, GAP, HEIGHT, LOWEST = 12.0, 3.0, 26.0, 6.0
SIGN = 9.0  # font size of the sign below a bar


@dataclass(frozen=True, slots=True)
class StripRun:
    """One run.

    Attributes:
        title: the text of the tooltip.
        took: seconds; None if not known yet.
    """

    status: str
    title: str
    href: str = ""
    took: float | None = None


def run_strip(runs: Sequence[StripRun], label: str) -> Svg:
    """Draw ``runs``, the oldest first. ``label``: the text for screen readers."""
    longest = max((run.took or 0.0 for run in runs), default=0.0)
    bars = []
    for n, run in enumerate(runs):
        shown = mark(run.status)
        share = (run.took or 0.0) / longest if longest else 1.0
        high = LOWEST + (HEIGHT - LOWEST) * share
        x = n * (WIDTH + GAP)
        drawn = element(
            "g",
            title(run.title),
            element(
                "rect",
                x=x,
                y=0,
                width=WIDTH,
                height=HEIGHT + SIGN + 3,
                fill="none",
                pointer_events="all",
            ),
            element(
                "rect",
                x=x,
                y=HEIGHT - high,
                width=WIDTH,
                height=high,
                rx=2,
                class_="bar",
                fill=shown.line,
            ),
            text(x + WIDTH / 2, HEIGHT + SIGN, shown.symbol, font_size=SIGN, text_anchor="middle"),
            class_=f"run {css_class(run.status)}",
        )
        bars.append(linked(run.href, drawn))
    width = max(1.0, len(runs) * (WIDTH + GAP) - GAP)
    return picture(
        width,
        HEIGHT + SIGN + 3,
        label,
        bars,
        role="group" if any(run.href for run in runs) else "img",
    )
