"""Draws the attempts of a job over time: a row for each group or fork, pale while queued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unstuck.coordinator.model.past_attempts import AttemptInfo
from unstuck.graph.status_marks import css_class, mark
from unstuck.graph.svg import MONO, SOFT, Svg, cut, element, linked, picture, text, title
from unstuck.tasks.duration import format_duration

WIDTH, LABEL, ROW, BAR, TOP = 940.0, 200.0, 20.0, 11.0, 22.0
SIZE = 11.5  # font size
NARROWEST = 2.0  # pixels of a bar
# Bars of a row that are drawn separately; above it, bars that touch are merged.
APART = 40
ROWS = 40
_STEPS = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)
_WORRYING = ("FAILED", "LOST", "CANCELED", "RUNNING", "QUEUED")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An outcome that came too late and changed nothing. ``text``: the tooltip."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A group, or a whole fork, with its attempts in any order.

    Attributes:
        refused: outcomes that fenced attempts reported.
    """

    name: str
    attempts: Sequence[AttemptInfo]
    refused: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class _Bar:
    start: float
    end: float
    outcome: str
    label: str


def timeline(
    rows: Sequence[Row],
    now: float,
    label: str,
    href: Callable[[str], str] = lambda name: "",
    most: int = ROWS,
) -> Svg:
    """Draw all attempts up to ``now``.

    Args:
        label: the text for screen readers.
        href: returns the address to which the name of a row leads; empty for none.
        most: maximum number of rows. If there are more, those that need attention are drawn.
    """
    shown = _most_worrying([row for row in rows if row.attempts], most)
    begin = min((attempt.queued_at for row in shown for attempt in row.attempts), default=now)
    ends = [
        now if attempt.ended_at is None else attempt.ended_at
        for row in shown
        for attempt in row.attempts
    ]
    end = max([*ends, *(refusal.at for row in shown for refusal in row.refused), begin + 1])

    def x(at: float) -> float:
        return LABEL + (WIDTH - LABEL - 1) * (at - begin) / (end - begin)

    height = TOP + len(shown) * ROW + 2
    drawn = [*_axis(begin, end, height, x)]
    for n, row in enumerate(shown):
        drawn.append(_row(row, TOP + n * ROW, now, x, href(row.name)))
    if left := sum(bool(row.attempts) for row in rows) - len(shown):
        drawn.append(
            text(0, height + 12, f"… {left:,} more groups", font_size=SIZE, fill_opacity=SOFT)
        )
        height += ROW
    return picture(
        WIDTH, height, label, drawn, role="group" if any(href(row.name) for row in shown) else "img"
    )


def _most_worrying(rows: Sequence[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return list(rows)

    def rank(row: Row) -> int:
        outcomes = {attempt.outcome for attempt in row.attempts}
        return next((n for n, worry in enumerate(_WORRYING) if worry in outcomes), len(_WORRYING))

    kept = {id(row) for row in sorted(rows, key=rank)[:most]}
    return [row for row in rows if id(row) in kept]


def _axis(begin: float, end: float, height: float, x: Callable[[float], float]) -> Iterator[str]:
    whole = end - begin
    days = 86400 * (int(whole / 6 / 86400) + 1)
    step = next((step for step in _STEPS if whole / step <= 6), days)
    for n in range(int(whole / step) + 1):
        at = x(begin + n * step)
        words = f"+{format_duration(float(n * step))}" if n else "0"
        line = element(
            "path",
            d=f"M{at:.1f} {TOP - 4:g}V{height:g}",
            stroke="currentColor",
            stroke_opacity=0.18,
        )
        room = at < WIDTH - 30
        yield line + text(
            at,
            TOP - 9,
            words,
            font_size=10,
            fill_opacity=SOFT,
            text_anchor="middle" if room else "end",
        )


def _row(row: Row, y: float, now: float, x: Callable[[float], float], href: str) -> str:
    bars = [bar for attempt in row.attempts for bar in _bars(attempt, now, x)]
    crowded = len(bars) > APART
    if crowded:
        bars = [
            merged
            for outcome in dict.fromkeys(bar.outcome for bar in bars)
            for merged in _merged(bars, outcome)
        ]
    bars.sort(key=lambda bar: (bar.outcome != "QUEUED", bar.outcome != "SUCCEEDED"))
    name = text(
        0, y + ROW / 2 + 4, cut(row.name, LABEL - 12, SIZE), font_size=SIZE, font_family=MONO
    )
    marks = [
        element(
            "g",
            title(refusal.text),
            text(
                x(refusal.at),
                y + ROW / 2 + 4,
                "✕",
                font_size=12,
                text_anchor="middle",
                fill=mark("FAILED").line,
            ),
            class_="refused",
        )
        for refusal in row.refused[:APART]
    ]
    named = linked(href, element("g", title(row.name), name))
    return element("g", named, *(_rect(bar, y, crowded) for bar in bars), *marks, class_="row")


def _bars(attempt: AttemptInfo, now: float, x: Callable[[float], float]) -> Iterator[_Bar]:
    end = now if attempt.ended_at is None else attempt.ended_at
    claimed = end if attempt.claimed_at is None else attempt.claimed_at
    if claimed > attempt.queued_at:
        waited = (
            f"attempt {attempt.number} queued for {format_duration(claimed - attempt.queued_at)}"
        )
        yield _Bar(x(attempt.queued_at), x(claimed), "QUEUED", waited)
    if attempt.claimed_at is not None:
        ran = (
            f"attempt {attempt.number} {attempt.outcome.lower()}, "
            f"{format_duration(max(0.0, end - claimed))}"
        )
        why = f": {' '.join(attempt.text.split())[:300]}" if attempt.text else ""
        yield _Bar(
            x(claimed),
            x(end),
            attempt.outcome,
            f"{ran}{f' on {attempt.worker}' if attempt.worker else ''}{why}",
        )


def _merged(bars: Iterable[_Bar], outcome: str) -> Iterator[_Bar]:
    """Yield the bars of one outcome. Bars that touch are merged."""
    alike = sorted((bar for bar in bars if bar.outcome == outcome), key=lambda bar: bar.start)
    reach, begun, ends = 0.0, [0], []
    for n, (bar, after) in enumerate(pairwise(alike), 1):
        reach = max(reach, bar.end, bar.start + NARROWEST)
        if after.start > reach + 1:
            ends.append(reach)
            begun.append(n)
    ends.append(max(bar.end for bar in alike))
    for first, after_last, end in zip(begun, [*begun[1:], len(alike)], ends, strict=True):
        count = after_last - first
        label = alike[first].label if count == 1 else f"{count:,} attempts {outcome.lower()}"
        yield _Bar(alike[first].start, end, outcome, label)


def _rect(bar: _Bar, y: float, crowded: bool) -> str:
    shown = mark(bar.outcome)
    pale, lost = bar.outcome == "QUEUED", bar.outcome == "LOST"
    # Half the height, so that the bar below stays visible.
    half = crowded and bar.outcome not in ("QUEUED", "SUCCEEDED")
    return element(
        "rect",
        title(bar.label),
        x=bar.start,
        y=y + (ROW - BAR) / 2 + (BAR / 2 if half else 0),
        width=max(NARROWEST, bar.end - bar.start),
        height=BAR / 2 if half else BAR,
        rx=2,
        class_=f"bar {css_class(bar.outcome)}",
        fill=shown.fill if lost else shown.line,
        fill_opacity=0.28 if pale else None,
        stroke=shown.line if lost else None,
        stroke_dasharray="3 2" if lost else None,
    )
