"""``/api/v1`` answers programs with what ``--json`` of the command line answers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unstuck.coordinator.web.rendering import client_of

PREFIX = "/api/v1"


def failed(request: Request, error: Exception, code: int) -> Response | None:
    """The answer of the API to a request that failed with ``error``; None if a person asked for a page."""
    if not request.url.path.startswith(PREFIX):
        return None
    return JSONResponse({"error": getattr(error, "code", "ERROR"), "text": str(error)}, code)


def _counters(request: Request) -> Response:
    return JSONResponse(client_of(request).counters())


ROUTES = [Route(f"{PREFIX}/counters", _counters)]
