"""The screens of jobs: the list, one job, a group with its log, attempts, events, and the spec."""

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
from unstuck.coordinator.command_table import TargetKind
from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.errors import BadRequest, Damaged, NoSuchGroup
from unstuck.coordinator.model.records import Alteration
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.graph.folding import MAX_BOXES
from unstuck.read_model.group import Member
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import since_time
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.protocol.token import GROUP_ID
from unstuck.views.dataset_views import warehouse_at
from unstuck.views.event_words import in_few_words, without_repeats
from unstuck.views.jobs.job_logs import LogFile, Tail, logs_of, shown_line, tail_of
from unstuck.views.jobs.job_pictures import folded_graph_of_job, timeline_of
from unstuck.views.jobs.job_views import folded, timeout_revisions_after_claim
from unstuck.web.actions import actions_for, job_actions
from unstuck.web.pages import job_model as model
from unstuck.web.paging import is_entry
from unstuck.web.rendering import client_of, log_breaker, page, unchanged

FILTERS = ("status", "name", "since", "limit", "unfold")
MOST = 50  # jobs of a list
FOLDED_OF = 1000  # newest jobs, of which runs are folded into lines
WAITS_WITHIN = 1.0  # seconds to read the reasons of a list
MEMBERS = 8  # of each fork, with explanations
EVENTS = 100  # of one page
ATTEMPTS_OF = 5_000  # newest events, from which the timeline is drawn
SHOWN_SPEC = 200_000  # characters
# Without libyaml, 5,000 groups take a second.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def jobs(request: Request) -> Response:
    """List jobs. The query has the filters of `unstuck list`."""
    filters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    client, unfold = client_of(request), filters["unfold"] != ""
    limit = (
        min(1000, max(1, int(filters["limit"])))
        if filters["limit"].isdecimal() and len(filters["limit"]) < 6
        else MOST
    )
    listed = client.jobs(
        status=_statuses(filters["status"]),
        name=filters["name"] or None,
        since=_since(filters["since"]),
        limit=limit if unfold else max(limit, FOLDED_OF),
    )
    lines = [[job] for job in listed] if unfold else folded(listed)[:limit]
    waits = waits_of(client, [line[0] for line in lines], WAITS_WITHIN)
    context: dict[str, Any] = {
        "lines": lines,
        "waits": waits,
        "filters": filters,
        "limit": limit,
        "statuses": list(Status),
    }
    return page(request, "jobs.html", etag_data=(lines, waits), **context)


def _statuses(word: str) -> list[Status]:
    """Parse a list of statuses. Raises: BadRequest."""
    try:
        return [Status(name.strip().upper()) for name in word.split(",") if name.strip()]
    except ValueError:
        raise BadRequest(f"{word!r} is no status; there are {', '.join(Status)}") from None


def _since(text: str) -> float | None:
    """Parse a time. Raises: BadRequest."""
    if not text:
        return None
    try:
        return since_time(text)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def job(request: Request) -> Response:
    """Show one job."""
    view = _view(request)
    groups = model.page_of_groups(view, request.query_params)
    explanations, more_explanations = model.explanations_of(view)
    errors, more_errors = model.errors_of(view)
    outputs = model.outputs_of([member for group in view.groups for member in group.members])
    explained = view.explanations.get(view.id)
    etag_data = (
        view,
        view.damage,
        view.done,
        view.total,
        groups,
        explanations,
        errors,
        outputs,
        explained,
    )
    if same := unchanged(request, etag_data):
        return same
    anchors = {model.anchor(line.id or line.name) for line in groups.items}

    def href(name: str) -> str:
        return (
            f"#{model.anchor(name)}"
            if model.anchor(name) in anchors
            else model.job_href(view.id, "groups", name)
        )

    return page(
        request,
        "job.html",
        etag_data=etag_data,
        view=view,
        tab="",
        explained=explained,
        finished=model.finished_text(view),
        explanations=explanations,
        more_explanations=more_explanations,
        graph=folded_graph_of_job(view, href, model.state_href) if view.groups else None,
        is_folded=len(view.groups) > MAX_BOXES,
        groups=groups,
        errors=errors,
        more_errors=more_errors,
        outputs=outputs,
        actions=job_actions(view.id, view.status, explained.help if explained else ()),
        anchor=model.anchor,
        job_href=model.job_href,
    )


def group(request: Request) -> Response:
    """Show a group, or a member of a fork, with its log; or a fork with its members."""
    view, name = _view(request), request.path_params["group"]
    fork = view.planned(name)
    # None for a whole fork, or without a record.
    member = next((member for member in fork.members if member.id == name), None)
    whole = fork.forked and name == fork.name and member is None
    explanations, more_explanations = model.explanations_of(view, name)
    errors, more_errors = model.errors_of(view, name)
    shown = list(fork.members) if whole else [] if member is None else [member]
    states = (
        [GroupState(state) for state in fork.states]
        if whole
        else [member.state if member else GroupState.WAITING]
    )
    members = model.page_of_members(view, fork, request.query_params) if whole else None
    etag_data = (view.status, fork.states, fork.expanded, member, members, explanations, errors)
    if same := unchanged(request, etag_data):
        return same
    return page(
        request,
        "group.html",
        etag_data=etag_data,
        view=view,
        tab="group",
        name=name,
        fork=fork,
        member=member,
        members=members,
        whole=whole,
        state=states[0],
        explanations=explanations,
        more_explanations=more_explanations,
        errors=errors,
        more_errors=more_errors,
        outputs=model.outputs_of(shown),
        actions=actions_for(TargetKind.GROUP, view.id, view.status, name, states),
        anchor=model.anchor,
        job_href=model.job_href,
        **({} if whole else _log(request, view, name)),
    )


def log(request: Request) -> Response:
    """Show the end of the log of one attempt. The screen of a group loads it every few seconds."""
    job, name = client_of(request).facts(request.path_params["job"]), request.path_params["group"]
    if GROUP_ID.fullmatch(name) is None:
        raise NoSuchGroup(f"job {job.id} has no group {name!r}")
    context = _log(request, job, name)
    return page(
        request,
        "log.html",
        etag_data=context,
        view=job,
        tab="group",
        name=name,
        job_href=model.job_href,
        **context,
    )


def _log(request: Request, job: JobInfo, name: str) -> dict[str, Any]:
    """Return the last lines of a log of a group: of the requested attempt, or of the newest one."""
    requested = request.query_params.get("attempt", "")

    def read() -> tuple[list[LogFile], LogFile | None, Tail]:
        files = warehouse_at(job.warehouse).storage
        logs = logs_of(files, job.id, name)
        chosen = next((log for log in reversed(logs) if requested in ("", str(log.epoch))), None)
        return logs, chosen, Tail([], 0, 0) if chosen is None else tail_of(files, chosen.path)

    trouble, logs, chosen, tail = "", list[LogFile](), None, Tail([], 0, 0)
    try:
        logs, chosen, tail = log_breaker(request).call(
            job.warehouse, f"the log of {name} cannot be shown", read
        )
    except (OSError, UnstuckError) as error:  # the rest of the screen does not need the warehouse
        trouble = str(error)
    return {
        "log_lines": [shown_line(line, _clock) for line in tail.lines],
        "log_skipped": tail.skipped,
        "log_attempt": chosen.epoch if chosen else 0,
        "log_attempts": sorted({log.epoch for log in logs}),
        "log_asked": requested if requested.isdecimal() else "",
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
    """Show the attempts of a job over time, and its events, the newest first."""
    client, before = client_of(request), request.query_params.get("before", "+")
    if not (before == "+" or is_entry(before)):
        raise BadRequest(f"{before!r} is no entry of an event log")
    view = client.show(request.path_params["job"])
    entries = client.newest_events(view.id, EVENTS + 1, before)
    etag_data = (view.status, entries)
    if same := unchanged(request, etag_data):
        return same
    newest = client.newest_events(view.id, ATTEMPTS_OF)
    events = [event for _, event in reversed(newest)]
    shown = [event for _, event in reversed(entries[:EVENTS])]
    return page(
        request,
        "attempts.html",
        etag_data=etag_data,
        view=view,
        tab="attempts",
        timeline=timeline_of(view, events, lambda name: model.job_href(view.id, "groups", name)),
        cut=len(newest) == ATTEMPTS_OF,
        drawn=ATTEMPTS_OF,
        events=[
            (event, *in_few_words(event))
            for event in reversed(list(without_repeats(("", event) for event in shown)))
        ],
        older=entries[EVENTS - 1][0] if len(entries) > EVENTS else "",
        before=before,
        job_href=model.job_href,
    )


def spec(request: Request) -> Response:
    """Show the current spec of a job, the values of its parameters, and its alterations."""
    client = client_of(request)
    view = client.show(request.path_params["job"])
    ran = view.claimed[: model.A_PAGE] if view.revision else []
    etag_data = (view.status, view.revision, ran)
    if same := unchanged(request, etag_data):
        return same
    text = trouble = ""
    try:
        text = yaml.dump(
            client.written(view.id), Dumper=_DUMPER, sort_keys=False, allow_unicode=True
        )
    except Damaged as error:
        trouble = str(error)
    return page(
        request,
        "spec.html",
        etag_data=etag_data,
        view=view,
        tab="spec",
        text=text[:SHOWN_SPEC],
        trouble=trouble,
        is_cut=len(text) > SHOWN_SPEC,
        alterations=[
            _alteration(number, alteration) for number, alteration in enumerate(view.alterations, 1)
        ],
        ran=[_ran(view, member) for member in ran],
        job_href=model.job_href,
    )


def _alteration(number: int, alteration: Alteration) -> Mapping[str, Any]:
    changes = [
        (change.path, in_words(change.path, change.old), in_words(change.path, change.new))
        for change in alteration.changes
    ]
    return {
        "number": number,
        "at": alteration.at,
        "by": alteration.by,
        "reason": alteration.reason,
        "changes": changes,
    }


def _ran(view: JobInfo, member: Member) -> tuple[str, str, int, int]:
    """Return a group, its state, its revision, and the revision of a timeout that it got later."""
    return (
        member.id,
        member.state,
        member.revision,
        (timeout_revisions_after_claim(view, member) or [0])[-1],
    )


def _view(request: Request) -> JobInfo:
    return client_of(request).show(
        request.path_params["job"], why=True, members=MEMBERS, by_fleet=True
    )


def _of_job(path: str, screen: Callable[[Request], Response]) -> Route:
    """Return the route of a screen of one job.

    Another word for the job, such as its name, redirects to the address with its id.
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
