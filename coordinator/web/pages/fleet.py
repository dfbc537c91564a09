"""The screen of the fleet: runners, coordinators, and the queues between them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.web.rendering import client_of, page


def fleet(request: Request) -> Response:
    return page(request, "fleet.html", fleet=client_of(request).fleet())


ROUTES = [Route("/fleet", fleet)]
