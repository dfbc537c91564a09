"""The screens of jobs: the list of them, and one job with all that is known of it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.web.actions import job_actions
from unstuck.coordinator.web.rendering import client_of, page

MOST = 50  # jobs of a list


def jobs(request: Request) -> Response:
    found = client_of(request).jobs(limit=MOST)
    return page(request, "jobs.html", seen=found, jobs=found)


def job(request: Request) -> Response:
    view = client_of(request).show(request.path_params["job"], why=True, members=1)
    return page(
        request,
        "job.html",
        seen=(view.job, view.groups, view.why),
        view=view,
        actions=job_actions(view.job.id, view.job.status),
    )


ROUTES = [Route("/jobs", jobs), Route("/jobs/{job}", job)]
