"""The screens of schedules: the list of them, those first that are not well, and one schedule with
its runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.errors import Damaged
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.graph.run_strip import StripRun, run_strip
from unstuck.graph.svg import Svg
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import format_duration
from unstuck.views.dataset_views import Datasets, SourcePutAside
from unstuck.web.actions import schedule_actions
from unstuck.web.paging import part_of
from unstuck.web.rendering import client_of, page
from unstuck.web.warehouse_part import datasets_of, unreadable_as

MOST = 50  # schedules of one page
STRIP, RUNS, EVENTS, TICKS = 12, 20, 20, 5
LOOKED_AT = 5  # of the newest versions, for files that were put aside
PUT_ASIDE = 200  # files that are listed
_ORDER = (ScheduleStatus.HALTED, ScheduleStatus.RETRYING)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One line of the list. ``backlog``: in words; ``strip``: its last runs."""

    view: ScheduleView
    backlog: str
    strip: Svg
    next_at: float | None


def schedules(request: Request) -> Response:
    client = client_of(request).schedules
    views, damaged = client.all_and_unreadable()
    part = part_of(in_order(views), request.query_params, MOST, lambda view: view.schedule.name)
    runs = client.runs_of([view.schedule.name for view in part.items], STRIP)
    etag_data = [
        [(view.schedule, view.backlog, view.waits) for view in part.items],
        runs,
        part.matches,
        damaged,
    ]
    return page(
        request,
        "schedules.html",
        etag_data=etag_data,
        part=part,
        rows=_rows(part.items, runs),
        damaged=damaged,
    )


def _rows(
    views: Sequence[ScheduleView], runs: Mapping[str, Sequence[JobInfo]]
) -> Iterator[ScheduleRow]:
    """The lines, drawn one by one: a page that has not changed is not drawn."""
    for view in views:
        yield row_of(view, runs[view.schedule.name], linked=False)


def in_order(views: Sequence[ScheduleView]) -> list[ScheduleView]:
    """Those first that are not well, those last that have ended, and else by name."""

    def rank(view: ScheduleView) -> tuple[int, str]:
        record = view.schedule
        if record.status.terminal:
            return 4, record.name
        if record.status in _ORDER:
            return _ORDER.index(record.status), record.name
        return 2 if record.failures or record.trouble else 3, record.name

    return sorted(views, key=rank)


def row_of(view: ScheduleView, runs: Sequence[JobInfo], *, linked: bool = True) -> ScheduleRow:
    """The line of a schedule with its ``runs``, the newest first; ``linked``: each bar leads to its
    job.
    """
    ticks = view.next_ticks(1)
    strip = strip_of(view, runs, linked=linked)
    return ScheduleRow(
        view, backlog_text(view.backlog), strip, ticks[0].timestamp() if ticks else None
    )


def backlog_text(backlog: Backlog | None) -> str:
    """The unread part of its streams, in a few words; empty if it has none, or nobody has
    looked.
    """
    if backlog is None:
        return ""
    sentences = [
        stream.describe(backlog.at) for stream in backlog.streams.values() if stream.arrived
    ]
    return "; ".join(dict.fromkeys(sentences)) or "nothing is unread"


def strip_of(view: ScheduleView, runs: Sequence[JobInfo], *, linked: bool) -> Svg:
    """The picture of its last ``runs``, given the newest first."""
    drawn = [
        StripRun(
            job.status,
            _told(job, view),
            f"/jobs/{quote(job.id, safe='')}" if linked else "",
            job.took,
        )
        for job in runs
    ]
    counts = {
        word: sum(job.status == word for job in runs)
        for word in dict.fromkeys(job.status for job in runs)
    }
    summary = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none yet"
    return run_strip(drawn[::-1], f"The last runs of {view.schedule.name}: {summary}")


def _told(job: JobInfo, view: ScheduleView) -> str:
    since = format_duration(max(0.0, view.at - job.submitted_at))
    lasted = "" if job.took is None else f", took {format_duration(job.took)}"
    why = f": {job.trouble}" if job.trouble else ""
    return (
        f"{job.status} {job.id}, of {view.on_its_clock(job.tick)}, submitted {since} "
        f"ago{lasted}{why}"
    )


def schedule(request: Request) -> Response:
    name = request.path_params["name"]
    client = client_of(request).schedules
    try:
        view, why = client.show(name), client.why(name)
    except Damaged as error:
        return page(request, "error.html", status=500, title=f"Schedule {name}", text=f"{error}.")
    runs, events = client.runs(name, RUNS), client.events(name, EVENTS)
    return page(
        request,
        "schedule.html",
        etag_data=(view.schedule, view.backlog, why, runs, events[-1:]),
        view=view,
        why=why,
        row=row_of(view, runs),
        ticks=[(tick.timestamp(), view.params_at(tick)) for tick in view.next_ticks(TICKS)],
        runs=runs,
        events=events[::-1],
        actions=schedule_actions(view),
        spec=yaml.safe_dump(view.spec(), sort_keys=False, allow_unicode=True),
    )


def put_aside(request: Request) -> Response:
    """The files that its last runs have put aside: asked of the warehouse, which may be away."""
    name = request.path_params["name"]
    runs = client_of(request).schedules.runs(name, RUNS)
    sources, trouble = unreadable_as((), partial(put_aside_of, datasets_of(request), runs))
    return page(
        request,
        "put_aside.html",
        name=name,
        sources=sources[:PUT_ASIDE],
        more=max(0, len(sources) - PUT_ASIDE),
        trouble=trouble,
        looked_at=LOOKED_AT,
    )


def put_aside_of(datasets: Datasets, runs: Sequence[JobInfo]) -> list[SourcePutAside]:
    """The files and messages that the newest runs which have published have put aside."""
    versions = [job.version for job in runs if job.version][:LOOKED_AT]
    return [source for version in versions for source in datasets.put_aside(version)]


ROUTES = [
    Route("/schedules", schedules),
    Route("/schedules/{name}", schedule),
    Route("/schedules/{name}/put-aside", put_aside),
]
