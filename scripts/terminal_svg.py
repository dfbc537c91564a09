"""Draw a recording of a terminal as one SVG that plays by itself.

Rows that stay the same are drawn once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

WIDE, HIGH, TOP, SIDE = (
    8.4,
    19,
    44,
    16,
)  # pixels: a character, a row, the bar of the window, the margin
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BACK, FRONT, FRAME, SOFT = "#14171c", "#d8dee6", "#262b33", "#8a94a3"
RED, YELLOW, GREEN = "#f0717b", "#e5c76b", "#8ccf7e"
COLOURS = {
    "red": RED,
    "brown": YELLOW,
    "green": GREEN,
    "blue": "#67b0e8",
    "magenta": "#c47fd5",
    "cyan": "#6cbfbf",
}
WORDS = re.compile(r"\S+(?: \S+)*")
STILL = 4.0  # seconds for which the last screen stays
# Seconds between two screens, at least; a terminal draws more often than anybody can read.
APART = 0.35


class Frame(NamedTuple):
    """One screen: when it appeared in seconds, its rows of characters as pyte has them, and a line
    below it.
    """

    at: float
    screen: tuple[tuple[Any, ...], ...]
    caption: str


def animated(frames: Sequence[Frame], title: str, command: str, longest: float = 24.0) -> str:
    """The recording as SVG, played faster where it took longer than ``longest`` seconds; the
    picture says how much.

    Where animations are not shown, or not wanted, the picture is the first screen that has a
    caption.
    """
    took = frames[-1].at
    speed = max(1.0, took / longest)
    total = took / speed + STILL
    frames = _thinned(frames, APART * speed)
    times = [frame.at / speed for frame in frames]
    still = next((at for at, frame in zip(times, frames, strict=True) if frame.caption), 0.0)
    rows, columns = len(frames[0].screen), len(frames[0].screen[0])
    width, height = columns * WIDE + 2 * SIDE, TOP + rows * HIGH + 46
    tracks = [[_row(frame.screen[n]) for frame in frames] for n in range(rows)]
    tracks.append([f"<text class='c' x='{SIDE}'>{_text(frame.caption)}</text>" for frame in frames])
    styles: list[str] = []
    shapes: list[str] = []
    for n, track in enumerate(tracks):
        y = TOP + n * HIGH + (24 if n == rows else 14)
        for drawn, intervals in _intervals(track, times, total).items():
            if drawn:
                shown = _animation(intervals, total, still, styles)
                shapes.append(f"<g transform='translate(0 {y})'{shown}>{drawn}</g>")
    dots = [
        f"<circle cx='{20 + 18 * n}' cy='16' r='5' fill='{dot}'/>"
        for n, dot in enumerate((RED, YELLOW, GREEN))
    ]
    played = f"{took:.0f} s" + (f", played {speed:.1f} times as fast" if speed > 1 else "")
    return f"""<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height}' width='{width:.0f}' \
height='{height}' role='img' font-size='14' font-family="{FONT}">
<title>{escape(title)}</title>
<style>text {{ fill: {FRONT} }} .b {{ font-weight: 700 }} .s {{ fill: {SOFT} }} .c {{ fill: {RED}; font-weight: 700 }}
@media (prefers-reduced-motion) {{ g {{ animation: none !important }} }}
{chr(10).join(styles)}</style>
<rect width='{width:.0f}' height='{height}' rx='10' fill='{BACK}'/>
<path d='M0 {TOP - 12} H{width:.0f}' stroke='{FRAME}'/>
{"".join(dots)}
<text class='s' x='78' y='21'>{_text(command)}</text>
<text class='s' x='{width - SIDE:.0f}' y='21' text-anchor='end'>{played}</text>
{chr(10).join(shapes)}
</svg>
"""


def _text(text: str) -> str:
    # A space that does not break counts in every program that shows SVG; others are folded.
    return escape(text.replace(" ", "\u00a0"))


def _thinned(frames: Sequence[Frame], apart: float) -> list[Frame]:
    """The last screen of each stretch of ``apart`` seconds; every change of the caption is kept."""
    kept = [frames[0]]
    for frame in frames[1:]:
        if len(kept) > 1 and frame.at - kept[-2].at < apart and frame.caption == kept[-1].caption:
            kept[-1] = frame
        else:
            kept.append(frame)
    return kept


def _row(cells: Sequence[Any]) -> str:
    """One row of the screen; characters of one colour and weight are one text."""
    drawn = []
    column = 0
    for (colour, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in run)
        fill = COLOURS.get(
            colour.removeprefix("bright"), f"#{colour}" if len(colour) == 6 else FRONT
        )
        style = (" class='b'" if bold else "") + ("" if fill == FRONT else f" style='fill:{fill}'")
        for words in WORDS.finditer(text):  # each at its own column, whatever font there is
            at, length = SIDE + (column + words.start()) * WIDE, len(words[0]) * WIDE
            drawn.append(
                f"<text x='{at:.1f}' textLength='{length:.1f}'{style}>{_text(words[0])}</text>"
            )
        column += len(text)
    return "".join(drawn)


def _intervals(
    track: Sequence[str], times: Sequence[float], total: float
) -> dict[str, list[tuple[float, float]]]:
    """When each drawing of one row is shown."""
    found: dict[str, list[tuple[float, float]]] = {}
    for drawn, begin, end in zip(track, times, [*times[1:], total], strict=True):
        shown = found.setdefault(drawn, [])
        if shown and shown[-1][1] == begin:
            shown[-1] = (shown[-1][0], end)
        else:
            shown.append((begin, end))
    return found


def _animation(
    intervals: Sequence[tuple[float, float]], total: float, still: float, styles: list[str]
) -> str:
    """The attribute of a group that is shown in ``intervals``; its keyframes are added to
    ``styles``.
    """
    if [(round(begin), end) for begin, end in intervals] == [(0, total)]:
        return ""
    steps = {0.0: "hidden"}
    for begin, end in intervals:
        steps[100 * begin / total] = "visible"
        steps[100 * end / total] = "hidden" if end < total else "visible"
    name = f"k{len(styles)}"
    frames = " ".join(f"{at:.2f}%{{visibility:{value}}}" for at, value in sorted(steps.items()))
    styles.append(f"@keyframes {name} {{{frames}}}")
    hidden = "" if any(begin <= still < end for begin, end in intervals) else "visibility:hidden;"
    return f" style='{hidden}animation:{name} {total:.1f}s step-end infinite'"
