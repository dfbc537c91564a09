"""Draws the graph of a job, or of a spec that was not submitted: a box for each group or fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstuck.graph.layered import Box, Edge, Size, lay_out
from unstuck.graph.status_marks import css_class, mark
from unstuck.graph.svg import (
    MONO,
    SOFT,
    Svg,
    cut,
    element,
    linked,
    picture,
    plain,
    text,
    title,
    width_of,
)

NAME, SMALL = 13.0, 11.0  # font sizes
NARROW, WIDE = 92.0, 224.0  # of a box
PAD, MARGIN, STACKED = 10.0, 12.0, 4.0
HEIGHT, JOIN_HEIGHT = 46.0, 30.0
MAX_NEEDS_SHOWN = 12  # names in a tooltip
CENSUS = (
    "FAILED",
    "CANCELED",
    "CANCELING",
    "BACKOFF",
    "RUNNING",
    "QUEUED",
    "WAITING",
    "SKIPPED",
    "SUCCEEDED",
)


@dataclass(frozen=True, slots=True)
class GraphGroup:
    """A group in the graph.

    Attributes:
        needs: the groups that it needs; a group that is not drawn is left out.
        state: its state; of a fork, the state of the member that needs attention first. Empty for
            a spec that was not submitted.
        forked: whether the box represents several members.
        census: the number of members by state.
        join: its join rule.
        only_joins: whether it has no steps.
        note: a few words below its name.
        label: shown in place of the name; empty for the name.
        href: the address to which a click leads; empty for none.
    """

    name: str
    needs: Sequence[str] = ()
    state: str = ""
    forked: bool = False
    census: Mapping[str, int] = field(default_factory=dict)
    join: str = "all_succeeded"
    only_joins: bool = False
    note: str = ""
    label: str = ""
    href: str = ""


def worst_of(census: Mapping[str, int]) -> str:
    """Return the state of a fork: that of the member that needs attention first."""
    if (
        census.get("SUCCEEDED")
        and census.get("WAITING")
        and len([n for n in census.values() if n]) == 2
    ):
        return "RUNNING"
    return next((state for state in CENSUS if census.get(state) and state != "SKIPPED"), "SKIPPED")


def counted(census: Mapping[str, int]) -> str:
    """Return the members by state, such as ``2 failed, 4,998 succeeded``."""
    return ", ".join(f"{census[state]:,} {state.lower()}" for state in CENSUS if census.get(state))


def job_graph(groups: Sequence[GraphGroup], label: str) -> Svg:
    """Draw all groups and what each needs. ``label``: the text for screen readers."""
    by_name = {group.name: group for group in groups}
    layout = lay_out(
        {group.name: _size(group) for group in groups},
        {group.name: group.needs for group in groups},
    )
    drawn = [
        element(
            "g",
            *(_line(line) for line in layout.lines),
            class_="edges",
            fill="none",
            stroke="currentColor",
        ),
        element(
            "g", *map(_dot, layout.junctions.values()), class_="junctions", fill="currentColor"
        ),
        *(_group(by_name[name], box) for name, box in layout.boxes.items()),
    ]
    moved = element("g", *drawn, transform=f"translate({MARGIN:g} {MARGIN:g})")
    width, height = (side + 2 * MARGIN + STACKED for side in (layout.width, layout.height))
    has_links = any(group.href for group in groups)
    return picture(width, height, label, [moved], role="group" if has_links else "img")


def _size(group: GraphGroup) -> Size:
    name, below = width_of(_label(group), NAME) + 18, width_of(_below(group), SMALL)
    width = min(WIDE, max(NARROW, name + 2 * PAD, below + 2 * PAD))
    return width, JOIN_HEIGHT if _is_small(group) else HEIGHT


def _label(group: GraphGroup) -> str:
    return group.label or group.name


def _is_small(group: GraphGroup) -> bool:
    return group.only_joins and not _below(group)


def _below(group: GraphGroup) -> str:
    """Return the second line of a box."""
    rule = "" if group.join == "all_succeeded" else group.join
    if group.forked and group.census:
        total = sum(group.census.values())
        short = " ".join(
            f"{mark(state).symbol}{group.census[state]:,}"
            for state in CENSUS
            if group.census.get(state)
        )
        note = (
            f"{total:,}: {short}"
            if len([n for n in group.census.values() if n]) > 1
            else f"{total:,} {short[0]}"
        )
    else:
        note = group.note or group.state.lower()
    return " · ".join(filter(None, (rule, note)))


def _group(group: GraphGroup, box: Box) -> str:
    shown = mark(group.state)
    line, fill = (shown.line, shown.fill) if group.state else ("currentColor", "none")
    frame = {"width": box.w, "height": box.h, "rx": box.h / 2 if group.only_joins else 7.0}
    stacked = [
        element(
            "rect", x=box.x + off, y=box.y + off, **frame, class_="stacked", fill=fill, stroke=line
        )
        for off in ((STACKED,) if group.forked else ())
    ]
    names_y = box.y + (box.h / 2 + 4.5 if _is_small(group) else 19)
    symbol = f"{shown.symbol} " if group.state else ""
    drawn = [
        title(_tooltip(group)),
        *stacked,
        element(
            "rect",
            x=box.x,
            y=box.y,
            **frame,
            class_="box",
            fill=fill,
            stroke=line,
            stroke_width=1.5,
        ),
        element(
            "text",
            element("tspan", plain(symbol), fill=line, class_="mark") if symbol else "",
            plain(cut(_label(group), box.w - 2 * PAD - 16, NAME)),
            x=box.x + PAD,
            y=names_y,
            font_size=NAME,
            font_family=MONO,
            font_weight=600,
            fill="currentColor",
        ),
    ]
    if not _is_small(group):
        words = cut(_below(group), box.w - 2 * PAD, SMALL)
        where = {"font_size": SMALL, "font_family": MONO, "fill_opacity": SOFT + 0.15}
        drawn.append(text(box.x + PAD, box.y + 35, words, **where))
    if group.forked and group.census:
        drawn += _census(group.census, box)
    return linked(
        group.href,
        element("g", *drawn, class_=f"node {css_class(group.state)}" if group.state else "node"),
    )


def _tooltip(group: GraphGroup) -> str:
    """Return the name of a group, its status, and the groups that it needs."""
    status_text = (
        counted(group.census)
        if group.forked and group.census
        else group.state.lower() or group.note
    )
    needs = f"after {_some(group.needs)} ({group.join})" if group.needs else ""
    return ": ".join(filter(None, [group.name, "; ".join(filter(None, [status_text, needs]))]))


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NEEDS_SHOWN
    return ", ".join(names[:MAX_NEEDS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _census(census: Mapping[str, int], box: Box) -> list[str]:
    """Draw a bar with the share of each state. The smallest share stays visible."""
    counts = [(state, census[state]) for state in reversed(CENSUS) if census.get(state)]
    room = box.w - 2 * PAD - 2.0 * len(counts)
    total = sum(count for _, count in counts)
    bars, x = [], box.x + PAD
    for state, count in counts:
        wide = 2.0 + room * count / total
        bars.append(
            element(
                "rect",
                x=x,
                y=box.y + box.h - 6,
                width=wide,
                height=3,
                class_=f"bar {css_class(state)}",
                fill=mark(state).line,
            )
        )
        x += wide
    return bars


def _line(line: Edge) -> str:
    points = line.points
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for n in range(0, len(points) - 1, 2):
        (x1, y1), (x2, y2) = points[n], points[n + 1]
        if n:
            path.append(f"H{x1:g}")
        middle = round((x1 + x2) / 2, 1)
        path.append(
            f"H{x2:g}" if y1 == y2 else f"C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        )
    return element("path", d="".join(path), stroke_opacity=0.55, stroke_width=1.3)


def _dot(box: Box) -> str:
    return element(
        "circle", cx=box.x + box.w / 2, cy=box.y + box.h / 2, r=box.w / 2, fill_opacity=SOFT
    )
