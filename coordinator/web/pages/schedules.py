"""The screens of schedules: the list of them, and one schedule."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.web.rendering import client_of, page


def schedules(request: Request) -> Response:
    views = client_of(request).schedules.all()
    return page(request, "schedules.html", seen=[view.schedule for view in views], views=views)


def schedule(request: Request) -> Response:
    view = client_of(request).schedules.show(request.path_params["name"])
    return page(request, "schedules.html", seen=view.schedule, views=[view])


ROUTES = [Route("/schedules", schedules), Route("/schedules/{name}", schedule)]
