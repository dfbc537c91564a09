"""The screen Now: problems, running jobs, and jobs that ended in the last day."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.client.now import MAX_JOBS_PER_SCAN, MAX_ROWS_SHOWN, Snapshot
from unstuck.coordinator.problems.problem import Problem
from unstuck.web.actions import problem_actions
from unstuck.web.rendering import client_of, page, unchanged


def now(request: Request) -> Response:
    client = client_of(request)
    snapshot = Snapshot.of(client)
    # Sentences about the fleet contain durations, which are rendered again with the ages.
    stable = [
        replace(problem, text="") if _href(problem) == "/fleet" else problem
        for problem in snapshot.problems
    ]
    etag_data = (stable, snapshot.running, snapshot.ended)
    if same := unchanged(request, etag_data):
        return same
    snapshot, waits = snapshot.explained(client)
    problems = snapshot.problems
    return page(
        request,
        "now.html",
        etag_data=etag_data,
        problems=[
            (problem, _href(problem), problem_actions(problem))
            for problem in problems[: 2 * MAX_ROWS_SHOWN]
        ],
        more_problems=max(0, len(problems) - 2 * MAX_ROWS_SHOWN),
        running=snapshot.others,
        more=len(snapshot.running) > MAX_ROWS_SHOWN,
        ended=snapshot.ended[:MAX_ROWS_SHOWN],
        waits=waits,
        at=snapshot.at,
        lately=MAX_JOBS_PER_SCAN,
    )


def _href(problem: Problem) -> str:
    """Return the path of the screen with more about the subject of a problem."""
    name = quote(problem.name, safe="")
    match problem.kind:
        case "job":
            return f"/jobs/{quote(problem.job, safe='')}" if problem.job else f"/jobs?name={name}"
        case "schedule":
            return f"/schedules/{name}"
        case _:
            return "/fleet"


ROUTES = [Route("/", now)]
