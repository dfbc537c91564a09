"""Draw the pictures in docs/images, and the tables of moves and of metrics in pages of docs, from
the code.

``python scripts/diagrams.py`` writes them again. A test of the docs compares them with the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from scripts.drawing import Drawing, Point
from unstuck.coordinator.model.schedule_record import SCHEDULE_MOVES, ScheduleStatus
from unstuck.coordinator.model.status import (
    GROUP_MOVES,
    GROUP_MOVES_REQUESTED,
    JOB_MOVES,
    PHASE_MOVES,
    GroupState,
)
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.graph.svg import on_paper
from unstuck.metrics.catalog import CATALOG
from unstuck.views.jobs.job_pictures import graph_of_plan

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
Moves = Mapping[tuple[StrEnum, StrEnum], str]

GREEN, AMBER, GREY, BLUE = "#e3f5e6", "#fdf1d8", "#eef1f4", "#e6f0fa"


# -- tables ----------------------------------------------------------------------------------------


def table(moves: Moves) -> str:
    """One row per move; moves from several states to one for the same reason share a row."""
    rows: dict[tuple[StrEnum, str], list[StrEnum]] = {}
    for (old, new), why in moves.items():
        rows.setdefault((new, why), []).append(old)
    lines = ["| from | to | when |", "|---|---|---|"]
    lines += [
        f"| {', '.join(old or '-' for old in olds)} | {new or '-'} | {why} |"
        for (new, why), olds in rows.items()
    ]
    return "\n".join(lines)


def metrics() -> str:
    """One row per metric."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for one in CATALOG:
        labels = ", ".join(f"`{name}`" for name in one.labels) or "none"
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines)


# The tables of each page, by the names of their marks.
PAGES: dict[str, dict[str, str]] = {
    "internals/how-it-works.md": {
        "table of a group": table(GROUP_MOVES),
        "table of what is asked": table(GROUP_MOVES_REQUESTED),
        "table of a job": table(JOB_MOVES),
        "table of publishing": table(PHASE_MOVES),
    },
    "schedules.md": {"table of a schedule": table(SCHEDULE_MOVES)},
    "metrics.md": {"table of metrics": metrics()},
}


def drawn(name: str, page: str) -> str:
    """``page``, which is that of this name, with every table as the code has it.

    Raises:
        ValueError: a table has no marks in the page.
    """
    for mark, text in PAGES[name].items():
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"{name} has no {begin} … {end}")
        between = f"{begin}\n{text}\n{end}"
        page = pattern.sub(lambda _, between=between: between, page)  # type: ignore[misc]
    return page


# -- pictures --------------------------------------------------------------------------------------


def architecture() -> str:
    d = Drawing(
        920,
        500,
        "Apps submit to Redis, coordinators decide and publish, workers run Spark and stage files",
    )
    d.box(20, 60, 160, 80, "an app, a shell", "Client, unstuck submit")
    d.box(
        300,
        50,
        190,
        100,
        "Redis",
        "the record of every job",
        "what is due, and when",
        "queues and reports",
        fill=AMBER,
    )
    d.frame(620, 20, 280, 150, "a worker host; any number")
    d.box(640, 58, 110, 90, "runner", "Celery child,", "Spark driver", fill=GREEN)
    d.box(770, 58, 110, 90, "watchdog", "keeps the lease,", "kills", fill=GREEN)
    d.box(300, 270, 190, 80, "coordinator; two", "decides, wakes runners,", "publishes", fill=BLUE)
    d.box(20, 275, 160, 70, "beat", "fires the sweep", fill=GREY)
    d.box(
        620,
        270,
        280,
        80,
        "warehouse",
        "staged Parquet files, markers,",
        "the log that readers believe",
        fill=AMBER,
    )
    d.box(620, 420, 280, 60, "readers", "Spark, DuckDB, pandas, Polars", fill=GREY)

    d.arrow((180, 100), (298, 100))
    d.text(239, 91, "submit", small=True)
    d.text(239, 118, "commands", small=True)
    d.arrow((490, 80), (637, 80), dashed=True)
    d.text(556, 71, "wake-ups (may be lost)", small=True)
    d.arrow((638, 120), (492, 120))
    d.text(558, 138, "claim, renew, finish", small=True)
    d.arrow((365, 152), (365, 267))
    d.text(355, 205, "reports,", small=True, anchor="end")
    d.text(355, 221, "the record", small=True, anchor="end")
    d.arrow((425, 268), (425, 153))
    d.text(435, 205, "one commit", small=True, anchor="start")
    d.text(435, 221, "per decision", small=True, anchor="start")
    d.arrow((180, 310), (298, 310), dashed=True)
    d.text(239, 301, "sweep", small=True)
    d.arrow((695, 150), (695, 267))
    d.text(705, 205, "files, then the marker", small=True, anchor="start")
    d.arrow((490, 310), (617, 310))
    d.text(553, 301, "one log entry", small=True)
    d.text(553, 328, "per job", small=True)
    d.arrow((760, 350), (760, 417))
    d.text(765, 388, "all of a job, or nothing", small=True, anchor="start")
    return d.svg()


# Where each state stands: the way of a group from left to right, ends on the right.
PLACES = {
    GroupState.WAITING: (20, 330),
    GroupState.QUEUED: (230, 130),
    GroupState.RUNNING: (440, 130),
    GroupState.BACKOFF: (335, 20),
    GroupState.CANCELING: (620, 20),
    GroupState.SUCCEEDED: (780, 190),
    GroupState.CANCELED: (780, 270),
    GroupState.FAILED: (780, 350),
    GroupState.SKIPPED: (780, 430),
}
# Moves that would run through a box, and how far they are bent out of its way.
BENDS = {
    (GroupState.BACKOFF, GroupState.CANCELED): 70,
    (GroupState.WAITING, GroupState.SUCCEEDED): -10,
    (GroupState.CANCELING, GroupState.SUCCEEDED): 30,
    (GroupState.CANCELING, GroupState.CANCELED): -50,
}
BOX = (120, 44)


# A stop, from everywhere, is left out of the picture: the table has it.
SCHEDULE_PLACES = {
    ScheduleStatus.WAITING: (20, 150),
    ScheduleStatus.RUNNING: (300, 40),
    ScheduleStatus.RETRYING: (300, 260),
    ScheduleStatus.HALTED: (560, 260),
    ScheduleStatus.PAUSED: (560, 40),
    ScheduleStatus.FINISHED: (780, 150),
}


def group_states() -> str:
    d = Drawing(920, 490, "The moves of a group")
    _states(d, GROUP_MOVES, PLACES, BENDS, {GroupState.SUCCEEDED: GREEN, GroupState.RUNNING: BLUE})
    return d.svg()


def schedule_states() -> str:
    d = Drawing(920, 330, "The moves of a schedule")
    fills = {
        ScheduleStatus.WAITING: GREEN,
        ScheduleStatus.RUNNING: BLUE,
        ScheduleStatus.FINISHED: GREY,
    }
    _states(d, SCHEDULE_MOVES, SCHEDULE_PLACES, {}, fills)
    return d.svg()


def _states(
    d: Drawing,
    moves: Moves,
    places: Mapping[Any, tuple[int, int]],
    bends: Mapping[tuple[Any, Any], int],
    fills: Mapping[Any, str],
) -> None:
    """Draw the moves between the states that have a place."""
    centre = {state: (x + BOX[0] / 2, y + BOX[1] / 2) for state, (x, y) in places.items()}
    for old, new in moves:
        if old in places and new in places:
            both = (new, old) in moves  # the two moves must not lie on each other
            d.arrow(*_edge(centre[old], centre[new]), bend=bends.get((old, new), 26 if both else 0))
    for state, (x, y) in places.items():
        d.box(x, y, *BOX, str(state), fill=fills.get(state, GREY if state.terminal else AMBER))


def _edge(start: Point, end: Point) -> tuple[Point, Point]:
    """The line from box to box, cut at the borders of both."""

    def border(a: Point, b: Point) -> Point:
        dx, dy = b[0] - a[0], b[1] - a[1]
        share = min(BOX[0] / 2 / abs(dx) if dx else 9, BOX[1] / 2 / abs(dy) if dy else 9)
        return a[0] + dx * share, a[1] + dy * share

    return border(start, end), border(end, start)


LANES = {"coordinator": 110, "Redis": 350, "runner": 590, "warehouse": 820}
# From, to, what, and whether the message may be lost.
MESSAGES = [
    ("coordinator", "Redis", "commit: group QUEUED, attempt record, inputs frozen", False),
    ("coordinator", "runner", "wake-up (Celery; may be lost)", True),
    ("runner", "Redis", "claim: CLAIMED, with a lease", False),
    ("runner", "Redis", "renew: lease and progress (the watchdog, every 3 s)", False),
    ("runner", "warehouse", "Parquet files, then the marker", False),
    ("runner", "Redis", "finish: outcome, report and due in one script", False),
    ("Redis", "coordinator", "report", True),
    ("coordinator", "Redis", "commit: SUCCEEDED, the next groups QUEUED", False),
    ("coordinator", "warehouse", "when all groups are done: one log entry", False),
    ("coordinator", "Redis", "commit: FINISHED", False),
]


def attempt() -> str:
    d = Drawing(
        920, 80 + 42 * len(MESSAGES), "The messages of one attempt, from the commit to the package"
    )
    for name, x in LANES.items():
        d.line((x, 60), (x, d.height - 16))
        d.box(x - 70, 20, 140, 40, name, fill=AMBER if name in ("Redis", "warehouse") else BLUE)
    for n, (source, target, what, lossy) in enumerate(MESSAGES):
        y = 100 + 42 * n
        start, end = LANES[source], LANES[target]
        d.arrow((start, y), (end - 2 if end > start else end + 2, y), dashed=lossy)
        d.label((start + end) / 2, y - 7, what)
    return d.svg()


def lost_attempt() -> str:
    d = Drawing(
        920,
        370,
        "A job as a graph; one attempt is lost, fenced and replaced, and the job is published once",
    )
    d.box(20, 110, 120, 56, "orders", "succeeded", fill=GREEN)
    for n, y in enumerate((20, 85, 150, 225)):
        d.arrow((140, 138), (198, y + 26))
        d.box(200, y, 130, 52, f"by_region[{n}]", "succeeded", fill=GREEN)
    for y in (46, 111, 176):
        d.arrow((330, y), (498, 111))
    d.box(500, 83, 130, 56, "total", "succeeded", fill=GREEN)
    d.arrow((630, 111), (708, 111))
    d.box(710, 75, 190, 72, "warehouse", "all outputs of the job,", "in one log entry", fill=AMBER)
    d.frame(370, 190, 530, 112, "the attempts of by_region[3]")
    d.arrow((330, 251), (368, 251))
    d.box(385, 225, 180, 60, "attempt 1", "froze: its lease ended", fill=GREY)
    d.arrow((565, 255), (698, 255))
    d.label(632, 249, "replaced")
    d.box(700, 225, 185, 60, "attempt 2", "on another runner", fill=GREEN)
    d.arrow((800, 225), (620, 141))
    d.arrow((475, 285), (475, 322), dashed=True)
    d.box(385, 324, 330, 36, "refused: it woke up after its lease", fill=GREY)
    return d.svg()


def flights() -> str:
    """The job of the tutorial, as `unstuck validate --graph` draws it."""
    spec = JobSpec.from_file(DOCS.parent / "examples" / "flights.yaml")
    return on_paper(graph_of_plan(compile_plan(spec)))


def pictures() -> dict[str, str]:
    """Every picture that is drawn, by its file."""
    return {
        "architecture.svg": architecture(),
        "group-states.svg": group_states(),
        "schedule-states.svg": schedule_states(),
        "attempt.svg": attempt(),
        "lost-attempt.svg": lost_attempt(),
        "flights.svg": flights(),
    }


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(drawn(page, (DOCS / page).read_text()))
    IMAGES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (IMAGES / name).write_text(text)
