"""The tree of a job for ``show`` and ``watch``: its groups, and running or failed members. Pure.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from unstuck.cli.render.terminal import BAR, STYLES, TextTable, bar, coloured, table
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.graph.status_marks import mark
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import format_duration
from unstuck.views.jobs.job_lines import Line, lines_of, why


def fitted(lines: Sequence[Line], height: int) -> list[Line]:
    """Cut ``lines`` to ``height``; the least important lines are replaced by their count."""
    if len(lines) <= height:
        return list(lines)
    for unimportant in ({"SUCCEEDED", "SKIPPED"}, {"SUCCEEDED", "SKIPPED", "WAITING"}):
        kept: list[Line] = []
        for hidden, run in groupby(
            lines,
            lambda line: line.state in unimportant,  # noqa: B023 - called at once
        ):
            some = list(run)
            kept += (
                [Line(f"… {len(some)} more", "", " or ".join(sorted(unimportant)).lower())]
                if hidden
                else some
            )
        if len(kept) <= height:
            return kept
    left = len(kept) - max(height - 1, 0)
    return [*kept[: max(height - 1, 0)], Line(f"… {left} more", "", "unstuck show JOB shows all")]


def job_tree(
    view: JobInfo, at: float, height: int | None = None, cut: bool = False
) -> RenderableType:
    """Return the job with its tree.

    Args:
        height: groups there is room for, a line each; None: all are shown.
        cut: shorten each to one line of the terminal.
    """
    head = headline(view, at, cut)
    lines = lines_of(view, at)
    if height is not None:
        lines = fitted(lines, max(3, height - len(head)))
    return Group(*head, _grid(lines) if cut else _listing(lines))


def headline(job: JobInfo, at: float, cut: bool) -> list[Text]:
    """Return the job as one line, and its reason below if it has one."""
    elapsed = (job.ended_at or at) - (job.started_at or job.submitted_at)
    first = Text.assemble(
        (job.name, "bold"),
        "  ",
        (job.id, "dim"),
        "  ",
        coloured(job.status),
        f"  {job.progress} ",
        (bar(job.done, job.total or 0), STYLES.get(job.status, "")),
        f"  {format_duration(max(0.0, elapsed))}",
    )
    reason = why(job, at)
    if not reason:
        return [first]
    calm = job.status in (Status.PENDING, Status.RUNNING)
    style = "red" if job.status is Status.FAILED else "dim" if calm else "yellow"
    # What it waits for changes while one looks, and must not move the tree; how it ended is read in
    # full.
    short = cut and not job.terminal
    return [
        first,
        Text(f"  {reason}", style, no_wrap=short, overflow="ellipsis" if short else "fold"),
    ]


def _grid(lines: Sequence[Line]) -> Table:
    """Return the lines cut to the width of the terminal. A narrow one cuts the detail first.

    The detail gives way first where that is narrow.
    """
    grid = Table.grid(
        Column(no_wrap=True, overflow="ellipsis", max_width=48),
        Column(no_wrap=True),
        Column(no_wrap=True),
        Column(no_wrap=True, overflow="ellipsis", ratio=1),
        Column(no_wrap=True, justify="right"),
        Column(no_wrap=True, overflow="ellipsis", max_width=24),
        padding=(0, 1, 0, 0),
        expand=True,
    )
    for cells in _cells(lines):
        grid.add_row(*cells)
    return grid


def _listing(lines: Sequence[Line]) -> TextTable:
    """Return the lines in full."""
    listing = table("", "", "", "", "", "")
    for cells in _cells(lines):
        listing.add_row(*cells)
    return listing


def _cells(lines: Sequence[Line]) -> Iterator[tuple[Text, ...]]:
    for number, line in enumerate(lines):
        last = number + 1 == len(lines) or not lines[number + 1].member
        branch = ("   └─ " if last else "   ├─ ") if line.member else " "
        style = STYLES.get(line.state, "dim")
        yield (
            Text.assemble(
                (branch, "dim"),
                (f"{mark(line.state).symbol if line.state else ' '} ", style),
                line.name,
            ),
            coloured(line.state, line.state.lower()),
            _bar_cell(line, style),
            Text(line.detail, "red" if line.state == GroupState.FAILED else ""),
            Text("" if line.elapsed is None else format_duration(line.elapsed)),
            Text(line.where, "dim"),
        )


def _bar_cell(line: Line, style: str) -> Text:
    if not line.total:
        # A step that counts without knowing how far still shows that it moves.
        return Text(f"{line.done:,.10g}" if line.done else "")
    return Text.assemble(
        (bar(line.done, line.total, BAR // 2), style), f" {line.done:,.10g}/{line.total:,.10g}"
    )
