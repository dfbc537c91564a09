"""The screens of schedules: the list, unhealthy ones first, and one schedule with its runs."""

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
from unstuck.graph.run_strip import StripRun, run_strip
from unstuck.graph.svg import Svg
from unstuck.read_model.job import JobInfo
from unstuck.read_model.schedule import ScheduleInfo
from unstuck.tasks.duration import format_duration
from unstuck.views.dataset_views import Datasets, SourcePutAside
from unstuck.web.actions import schedule_actions
from unstuck.web.paging import part_of
from unstuck.web.rendering import client_of, page
from unstuck.web.warehouse_part import datasets_of, unreadable_as

MOST = 50  # schedules of one page
STRIP, RUNS, EVENTS, TICKS = 12, 20, 20, 5
LOOKED_AT = 5  # newest versions, in which files that were put aside are searched
PUT_ASIDE = 200  # files that are listed
_ORDER = (ScheduleStatus.HALTED, ScheduleStatus.RETRYING)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One line of the list.

    Attributes:
        backlog: the unread part of its streams, in words.
        strip: the picture of its last runs.
    """

    schedule: ScheduleInfo
    backlog: str
    strip: Svg


def schedules(request: Request) -> Response:
    client = client_of(request).schedules
    readable, damaged = client.all_and_unreadable()
    part = part_of(in_order(readable), request.query_params, MOST, lambda info: info.name)
    runs = client.runs_of([info.name for info in part.items], STRIP)
    etag_data = [part.items, runs, part.matches, damaged]
    return page(
        request,
        "schedules.html",
        etag_data=etag_data,
        part=part,
        rows=_rows(part.items, runs),
        damaged=damaged,
    )


def _rows(
    infos: Sequence[ScheduleInfo], runs: Mapping[str, Sequence[JobInfo]]
) -> Iterator[ScheduleRow]:
    """Yield the lines lazily: an unchanged page draws none."""
    for info in infos:
        yield row_of(info, runs[info.name], linked=False)


def in_order(schedules: Sequence[ScheduleInfo]) -> list[ScheduleInfo]:
    """Return unhealthy schedules first and ended ones last, each kind by name."""

    def rank(info: ScheduleInfo) -> tuple[int, str]:
        if info.status.terminal:
            return 4, info.name
        if info.status in _ORDER:
            return _ORDER.index(info.status), info.name
        return 2 if info.failures or info.trouble else 3, info.name

    return sorted(schedules, key=rank)


def row_of(info: ScheduleInfo, runs: Sequence[JobInfo], *, linked: bool = True) -> ScheduleRow:
    """Return the line of a schedule.

    Args:
        runs: its last jobs, the newest first.
        linked: each bar links to its job.
    """
    strip = strip_of(info, runs, linked=linked)
    return ScheduleRow(info, backlog_text(info.backlog), strip)


def backlog_text(backlog: Backlog | None) -> str:
    """Return the unread part of the streams in words; empty if none or not checked yet."""
    if backlog is None:
        return ""
    sentences = [
        stream.describe(backlog.at) for stream in backlog.streams.values() if stream.arrived
    ]
    return "; ".join(dict.fromkeys(sentences)) or "nothing is unread"


def strip_of(info: ScheduleInfo, runs: Sequence[JobInfo], *, linked: bool) -> Svg:
    """Draw the last ``runs``, the newest first."""
    drawn = [
        StripRun(
            job.status,
            _run_text(job, info),
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
    return run_strip(drawn[::-1], f"The last runs of {info.name}: {summary}")


def _run_text(job: JobInfo, info: ScheduleInfo) -> str:
    since = format_duration(max(0.0, info.at - job.submitted_at))
    lasted = "" if job.took is None else f", took {format_duration(job.took)}"
    why = f": {job.trouble}" if job.trouble else ""
    return (
        f"{job.status} {job.id}, of {info.on_its_clock(job.tick)}, submitted {since} "
        f"ago{lasted}{why}"
    )


def schedule(request: Request) -> Response:
    name = request.path_params["name"]
    client = client_of(request).schedules
    try:
        info = client.show(name, ticks=TICKS, jobs=RUNS, events=EVENTS)
        why = client.why(name)
    except Damaged as error:
        return page(request, "error.html", status=500, title=f"Schedule {name}", text=f"{error}.")
    return page(
        request,
        "schedule.html",
        etag_data=(info, why),
        schedule=info,
        why=why,
        strip=strip_of(info, info.jobs, linked=True),
        actions=schedule_actions(info),
        spec=yaml.safe_dump(client.written(name), sort_keys=False, allow_unicode=True),
    )


def put_aside(request: Request) -> Response:
    """Show the files that the last runs put aside. The warehouse may be unavailable."""
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
    """Return the files and messages that the newest published runs put aside."""
    versions = [job.version for job in runs if job.version][:LOOKED_AT]
    return [source for version in versions for source in datasets.put_aside(version)]


ROUTES = [
    Route("/schedules", schedules),
    Route("/schedules/{name}", schedule),
    Route("/schedules/{name}/put-aside", put_aside),
]
