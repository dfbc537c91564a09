"""The screen Now: what is not well, what runs, and what ended today."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.web.rendering import client_of, page

MOST = 50  # jobs of one list
NOT_WELL = (Status.HALTED, Status.RETRYING)


def now(request: Request) -> Response:
    client = client_of(request)
    open_jobs = client.jobs(status=[status for status in Status if not status.terminal], limit=MOST)
    not_well = [job for job in open_jobs if job.status in NOT_WELL]
    running = [job for job in open_jobs if job.status not in NOT_WELL]
    return page(request, "now.html", seen=(not_well, running), not_well=not_well, running=running)


ROUTES = [Route("/", now)]
