"""``/api/v1``: the JSON of the command line, and its commands, for programs."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException as AnyHTTPException

from unstuck.coordinator.spec.problems import path_text
from unstuck.documents.problem import MEDIA_TYPE, ProblemDetails, ProblemPlace
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.identity import release_here
from unstuck.web.api.api_request import problem
from unstuck.web.api.command_routes import command_routes
from unstuck.web.api.field_docs import document_fields
from unstuck.web.api.fleet_resources import datasets, fleet
from unstuck.web.api.job_resources import jobs
from unstuck.web.api.schedule_resources import schedules

log = logging.getLogger(__name__)
PREFIX = "/api/v1"


def api_app(state: Any) -> FastAPI:
    """Create the API. ``state``: of the page around it."""
    app = FastAPI(
        title="Unstuck",
        version=release_here().release,
        description=(
            "What `--json` of the command line answers. Errors are problem details by RFC 9457."
        ),
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}",
        root_path_in_servers=False,
        servers=[{"url": PREFIX}],
        responses={"default": {"model": ProblemDetails, "description": "A problem."}},
        exception_handlers={
            UnstuckError: _failed,
            OSError: _failed,
            UnicodeError: _no_text,
            RequestValidationError: _invalid,
            AnyHTTPException: _not_served,
            Exception: _bug,
        },
    )
    app.state = state
    for router in (jobs, schedules, datasets, fleet, *command_routes()):
        app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The document of FastAPI, with the media type of problems and the docs of fields."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            servers=app.servers,
        )
        for path_item in schema["paths"].values():
            for operation in path_item.values():
                content = operation["responses"]["default"]["content"]
                operation["responses"]["default"]["content"] = {MEDIA_TYPE: content.popitem()[1]}
        document_fields(schema["components"]["schemas"])
        app.openapi_schema = schema
    return app.openapi_schema


async def _failed(_: Request, error: Exception) -> Response:
    """Answer an error with its text."""
    return problem(ProblemDetails.of_error(error))


async def _no_text(_: Request, error: Exception) -> Response:
    detail = (
        "the request holds half of a surrogate pair, or bytes that are no text; nothing was changed"
    )
    return problem(ProblemDetails.of_code("REQUEST_INVALID", 422, detail))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places = [ProblemPlace(path_text(failure["loc"]), failure["msg"]) for failure in error.errors()]
    detail = "; ".join(f"{place.path}: {place.message}" for place in places)
    return problem(ProblemDetails.of_code("REQUEST_INVALID", 422, detail, places))


async def _not_served(_: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    return not_served(error)


def not_served(error: AnyHTTPException) -> Response:
    """Return the response for an unknown route or method, and for a read-only page."""
    codes = {403: "READ_ONLY", 404: "NO_SUCH_ROUTE", 405: "NO_SUCH_ROUTE"}
    detail = (
        error.detail
        if error.status_code == 403
        else f"there is no such route; {PREFIX}/openapi.json has them all"
    )
    document = ProblemDetails.of_code(
        codes.get(error.status_code, "REQUEST_INVALID"), error.status_code, str(detail)
    )
    return problem(document, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("the API could not answer %s", request.url.path)
    return problem(ProblemDetails.of_error(error))
