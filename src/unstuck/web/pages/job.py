"""The screens of jobs: the list, one job, one group of it with its log, attempts and events, and
the spec.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import yaml
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from unstuck.client.find_job import find_job
from unstuck.client.waits import waits_of
from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.errors import BadRequest, Damaged, NoSuchGroup
from unstuck.coordinator.model.records import Alteration
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.duration import since_time
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.protocol.token import GROUP_ID
from unstuck.views.dataset_views import warehouse_at
from unstuck.views.event_words import told, told_once
from unstuck.views.jobs.job_facts import GroupView, JobFacts, altered_while_running
from unstuck.views.jobs.job_logs import LogFile, Tail, logs_of, shown_line, tail_of
from unstuck.views.jobs.job_pictures import graph_of_job, timeline_of
from unstuck.views.jobs.job_views import JobView, folded
from unstuck.web.actions import group_actions, job_actions
from unstuck.web.pages import job_model as model
from unstuck.web.paging import is_entry
from unstuck.web.rendering import client_of, log_breaker, page, unchanged

FILTERS = ("status", "name", "since", "limit", "unfold")
MOST = 50  # jobs of a list
FOLDED_OF = 1000  # jobs among which those are looked for that are shown in one line
WAITS_WITHIN = 1.0  # seconds for the reasons of a list
DRAWN = 300  # groups of a graph that a page draws
MEMBERS = 8  # of each fork that are explained
EVENTS = 100  # of one page
ATTEMPTS_OF = 5_000  # events, the newest, of which the timeline is drawn
SHOWN_SPEC = 200_000  # characters
_DUMPER = getattr(
    yaml, "CSafeDumper", yaml.SafeDumper
)  # without libyaml 5,000 groups take a second


def jobs(request: Request) -> Response:
    """The list of jobs; the query takes the filters of `unstuck list`."""
    asked = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    client, unfold = client_of(request), asked["unfold"] != ""
    limit = (
        min(1000, max(1, int(asked["limit"])))
        if asked["limit"].isdecimal() and len(asked["limit"]) < 6
        else MOST
    )
    found = client.jobs(
        status=_statuses(asked["status"]),
        name=asked["name"] or None,
        since=_since(asked["since"]),
        limit=limit if unfold else max(limit, FOLDED_OF),
    )
    lines = [[job] for job in found] if unfold else folded(found)[:limit]
    waits = waits_of(client, [line[0] for line in lines], WAITS_WITHIN)
    known: dict[str, Any] = {
        "lines": lines,
        "waits": waits,
        "asked": asked,
        "limit": limit,
        "every": list(Status),
    }
    return page(request, "jobs.html", seen=(lines, waits), **known)


def _statuses(word: str) -> list[Status]:
    """Raises: BadRequest."""
    try:
        return [Status(one.strip().upper()) for one in word.split(",") if one.strip()]
    except ValueError:
        raise BadRequest(f"{word!r} is no status; there are {', '.join(Status)}") from None


def _since(text: str) -> float | None:
    """Raises: BadRequest."""
    if not text:
        return None
    try:
        return since_time(text)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def job(request: Request) -> Response:
    """All of one job that a person needs first."""
    view = _view(request)
    groups = model.page_of_groups(view, request.query_params)
    told_groups, more_told = model.told_of(view)
    errors, more_errors = model.errors_of(view)
    outputs = model.outputs_of([member for group in view.groups for member in group.members])
    explained = view.why.get(view.job.id)
    seen = (
        view.job,
        view.damage,
        view.done,
        view.total,
        groups,
        told_groups,
        errors,
        outputs,
        explained,
    )
    if same := unchanged(request, seen):
        return same
    there = {model.anchor(line.id or line.name) for line in groups.items}

    def href(name: str) -> str:
        return (
            f"#{model.anchor(name)}"
            if model.anchor(name) in there
            else model.job_href(view.job.id, "groups", name)
        )

    return page(
        request,
        "job.html",
        seen=seen,
        view=view,
        tab="",
        explained=explained,
        finished=model.finished_text(view),
        told_groups=told_groups,
        more_told=more_told,
        graph=graph_of_job(view, href) if view.groups and len(view.groups) <= DRAWN else None,
        groups=groups,
        errors=errors,
        more_errors=more_errors,
        outputs=outputs,
        actions=job_actions(view.job.id, view.job.status),
        anchor=model.anchor,
        job_href=model.job_href,
        drawn=DRAWN,
    )


def group(request: Request) -> Response:
    """One group or member of a fork with its log, or a fork with its members."""
    view, name = _view(request), request.path_params["group"]
    fork = view.planned(name)
    member = next(
        (one for one in fork.members if one.id == name), None
    )  # none: a whole fork, or no record yet
    whole = fork.forked and name == fork.name and member is None
    told_groups, more_told = model.told_of(view, name)
    errors, more_errors = model.errors_of(view, name)
    shown = list(fork.members) if whole else [] if member is None else [member]
    states = (
        [GroupState(state) for state in fork.census]
        if whole
        else [member.state if member else GroupState.WAITING]
    )
    members = model.page_of_members(view, fork, request.query_params) if whole else None
    seen = (view.job.status, fork.census, fork.expanded, member, members, told_groups, errors)
    if same := unchanged(request, seen):
        return same
    return page(
        request,
        "group.html",
        seen=seen,
        view=view,
        tab="group",
        name=name,
        fork=fork,
        member=member,
        members=members,
        whole=whole,
        state=states[0],
        told_groups=told_groups,
        more_told=more_told,
        errors=errors,
        more_errors=more_errors,
        outputs=model.outputs_of(shown),
        actions=group_actions(view.job.id, view.job.status, name, states),
        anchor=model.anchor,
        job_href=model.job_href,
        **({} if whole else _log(request, view.job, name)),
    )


def log(request: Request) -> Response:
    """The end of the log of one attempt, which the screen of its group asks for every few
    seconds.
    """
    job, name = client_of(request).facts(request.path_params["job"]), request.path_params["group"]
    if GROUP_ID.fullmatch(name) is None:
        raise NoSuchGroup(f"job {job.id} has no group {name!r}")
    known = _log(request, job, name)
    view = {"job": job}
    return page(
        request,
        "log.html",
        seen=known,
        view=view,
        tab="group",
        name=name,
        job_href=model.job_href,
        **known,
    )


def _log(request: Request, job: JobFacts, name: str) -> dict[str, Any]:
    """The last lines of a log of a group: of the attempt that is asked for, else of the newest
    one.
    """
    asked = request.query_params.get("attempt", "")

    def read() -> tuple[list[LogFile], LogFile | None, Tail]:
        files = warehouse_at(job.warehouse).storage
        logs = logs_of(files, job.id, name)
        one = next((log for log in reversed(logs) if asked in ("", str(log.epoch))), None)
        return logs, one, Tail([], 0, 0) if one is None else tail_of(files, one.path)

    trouble, logs, one, tail = "", list[LogFile](), None, Tail([], 0, 0)
    try:
        logs, one, tail = log_breaker(request).call(
            job.warehouse, f"the log of {name} cannot be shown", read
        )
    except (OSError, UnstuckError) as error:  # the rest of the screen does not come from there
        trouble = str(error)
    return {
        "log_lines": [shown_line(line, _clock) for line in tail.lines],
        "log_skipped": tail.skipped,
        "log_attempt": one.epoch if one else 0,
        "log_attempts": sorted({log.epoch for log in logs}),
        "log_asked": asked if asked.isdecimal() else "",
        "log_trouble": trouble,
        "log_lives": not job.terminal,
    }


def _clock(at: float, timespec: str) -> str:
    return (
        datetime.datetime.fromtimestamp(at, datetime.UTC)
        .astimezone()
        .isoformat(sep=" ", timespec=timespec)
    )


def attempts(request: Request) -> Response:
    """The attempts of a job over time, and its events, the newest first."""
    client, before = client_of(request), request.query_params.get("before", "+")
    if not (before == "+" or is_entry(before)):
        raise BadRequest(f"{before!r} is no entry of an event log")
    view = client.show(request.path_params["job"])
    found = client.newest_events(view.job.id, EVENTS + 1, before)
    seen = (view.job.status, found)
    if same := unchanged(request, seen):
        return same
    newest = client.newest_events(view.job.id, ATTEMPTS_OF)
    events = [event for _, event in reversed(newest)]
    shown = [event for _, event in reversed(found[:EVENTS])]
    return page(
        request,
        "attempts.html",
        seen=seen,
        view=view,
        tab="attempts",
        timeline=timeline_of(
            view, events, lambda name: model.job_href(view.job.id, "groups", name)
        ),
        cut=len(newest) == ATTEMPTS_OF,
        drawn=ATTEMPTS_OF,
        events=[
            (event, *told(event))
            for event in reversed(list(told_once(("", event) for event in shown)))
        ],
        older=found[EVENTS - 1][0] if len(found) > EVENTS else "",
        before=before,
        job_href=model.job_href,
    )


def spec(request: Request) -> Response:
    """The spec of a job as it is now, the values of its parameters, and what was altered."""
    client = client_of(request)
    view = client.show(request.path_params["job"])
    ran = view.claimed[: model.A_PAGE] if view.job.revision else []
    seen = (view.job.status, view.job.revision, ran)
    if same := unchanged(request, seen):
        return same
    text = trouble = ""
    try:
        text = yaml.dump(
            client.written(view.job.id), Dumper=_DUMPER, sort_keys=False, allow_unicode=True
        )
    except Damaged as error:
        trouble = str(error)
    return page(
        request,
        "spec.html",
        seen=seen,
        view=view,
        tab="spec",
        text=text[:SHOWN_SPEC],
        trouble=trouble,
        is_cut=len(text) > SHOWN_SPEC,
        alterations=[
            _alteration(number, one) for number, one in enumerate(view.job.alterations, 1)
        ],
        ran=[_ran(view, one) for one in ran],
        job_href=model.job_href,
    )


def _alteration(number: int, one: Alteration) -> Mapping[str, Any]:
    changes = [
        (each.path, in_words(each.path, each.old), in_words(each.path, each.new))
        for each in one.changes
    ]
    return {"number": number, "at": one.at, "by": one.by, "reason": one.reason, "changes": changes}


def _ran(view: JobView, one: GroupView) -> tuple[str, str, int, int]:
    """A group, its state, the revision that it ran with, and that of the timeout which it was given
    later.
    """
    return one.id, one.state, one.revision, (altered_while_running(view.job, one) or [0])[-1]


def _view(request: Request) -> JobView:
    return client_of(request).show(
        request.path_params["job"], why=True, members=MEMBERS, by_fleet=True
    )


def _of_job(path: str, screen: Callable[[Request], Response]) -> Route:
    """A screen of one job.

    Another word for the job than its id leads to the same screen under the id.
    """

    def found(request: Request) -> Response:
        word = request.path_params["job"]
        whole = find_job(client_of(request), word, by_key=True)
        if whole == word:
            return screen(request)
        values = {
            name: quote(value, safe="")
            for name, value in {**request.path_params, "job": whole}.items()
        }
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(path.format(**values) + query, 302)

    return Route(path, found)


ROUTES = [
    Route("/jobs", jobs),
    _of_job("/jobs/{job}", job),
    _of_job("/jobs/{job}/attempts", attempts),
    _of_job("/jobs/{job}/spec", spec),
    _of_job("/jobs/{job}/groups/{group}", group),
    _of_job("/jobs/{job}/groups/{group}/log", log),
]
