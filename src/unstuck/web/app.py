"""The page: a Starlette app that renders the views of the command line and acts by the client."""

from __future__ import annotations

import logging
import secrets

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from unstuck.client.client import Client
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.doctor.examine import Doctor
from unstuck.documents.problem import BUG, status_of
from unstuck.tasks.errors import UnstuckError
from unstuck.views.dataset_views import Datasets
from unstuck.web import actions
from unstuck.web.api.api_app import PREFIX, api_app, not_served
from unstuck.web.pages import datasets, fleet, job, now, schedules
from unstuck.web.rendering import HERE, page
from unstuck.web.safety import Access, AccessGuard

log = logging.getLogger(__name__)
LOG_TIMEOUT = 3.0  # seconds to read the end of a log
TITLES = {404: "Not found", 503: "No answer"}


def create_app(
    client: Client, access: Access, *, read_only: bool = False, exporter: Collector | None = None
) -> Starlette:
    """Create the page of a fleet.

    Args:
        client: used by all requests, from several threads at once. The caller closes it.
        exporter: of the metrics at ``/metrics``; None if they are not served.
        read_only: offer and run no actions.
    """
    routes: list[BaseRoute] = [
        *(
            route
            for each in (actions, now, job, schedules, datasets, fleet)
            for route in each.ROUTES
        ),
        Route("/login", _login, methods=["GET", "POST"]),
        Route("/healthz", _healthz),
        *([Route("/metrics", _metrics)] if exporter is not None else []),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(AccessGuard, access=access)],
        exception_handlers={UnstuckError: _failed, HTTPException: _not_served, Exception: _bug},
    )
    app.state.client = client
    app.state.exporter = exporter
    app.state.log_breaker = CircuitBreaker(LOG_TIMEOUT)
    app.state.datasets = Datasets(client.settings.warehouse, CircuitBreaker())
    app.state.doctor = Doctor(client.settings)
    app.state.read_only = read_only
    app.state.answers = actions.Answers()
    app.state.started = secrets.token_hex(4)  # another release may render the same data differently
    app.mount(PREFIX, api_app(app.state))
    return app


def _failed(request: Request, error: Exception) -> Response:
    """Answer an error with its text."""
    code = status_of(error)
    return page(
        request, "error.html", status=code, title=TITLES.get(code, "Not possible"), text=str(error)
    )


def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(PREFIX):  # a path with a line break matches no mount
        return not_served(error)
    code = error.status_code
    text = (
        "There is no such page."
        if code == 404
        else f"The page rejected this request with status {code}."
    )
    return page(request, "error.html", status=code, title="Not found", text=text)


def _bug(request: Request, error: Exception) -> Response:
    log.error("the page could not answer %s", request.url.path)
    return page(request, "error.html", status=500, title="A bug", text=BUG)


def _login(request: Request) -> Response:
    form = request.scope.get("unstuck.form", {})
    to = form.get("to", request.query_params.get("to", "/"))
    name = form.get("user", request.query_params.get("user", ""))
    wrong = request.method == "POST"
    code = 401 if wrong else 200
    return page(request, "login.html", status=code, to=to, wrong=wrong, name=name)


async def _healthz(request: Request) -> Response:
    """Answer that this process runs. Async, so that it does not wait for requests to Redis."""
    return PlainTextResponse("ok\n")


def _metrics(request: Request) -> Response:
    return Response(generate_latest(request.app.state.exporter), media_type=CONTENT_TYPE_LATEST)
