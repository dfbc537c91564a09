"""A request to the API: its client, its user, and its response."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Path, Request, Response
from pydantic import AfterValidator, Field

from unstuck.client.client import Client
from unstuck.client.find_job import find_job
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.spec.job_params import UnparsedText
from unstuck.coordinator.spec.problems import SpecError, Written
from unstuck.coordinator.spec.text import read_bytes, written_in
from unstuck.documents.json_text import json_text
from unstuck.documents.problem import MEDIA_TYPE, ProblemDetails
from unstuck.tasks.identity import user_here
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.dataset_views import check_there, warehouse_at

T = TypeVar("T")

WAREHOUSE_WITHIN = 10.0  # seconds for one response of a warehouse
_BREAKER = CircuitBreaker()


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to the API, and the responses to it."""

    request: Request
    client: Client

    def json_response(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return ``value`` as JSON, or 304 if the caller already has it."""
        return self.text_response(json_text(value), "application/json", status, headers)

    def text_response(
        self,
        text: str,
        media_type: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        body = text.encode(errors="replace")
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        more = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
        if self.request.method == "GET" and tag in self.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=more)
        return Response(body, status, more, media_type)

    def by(self, named: str | None) -> str:
        """Return the name for the event log: of the logged-in user, or else ``named``."""
        user = self.request.scope.get("unstuck.user", "")
        return f"{user} (api)" if user else named or f"{user_here()} (api)"

    def in_warehouse(self, uri: str, what: str, read: Callable[[Warehouse], T]) -> T:
        """Return the answer of a warehouse, which may hang.

        Raises: WarehouseSilent; BadRequest: there is no warehouse.
        """

        def ask() -> T:
            place = warehouse_at(uri)
            check_there(place, uri)
            return read(place)

        return _BREAKER.call(uri, what, ask, WAREHOUSE_WITHIN)


async def _api_request(request: Request) -> ApiRequest:
    if request.method == "POST" and request.app.state.read_only:
        raise HTTPException(403, "This server is read-only; nothing was changed.")
    return ApiRequest(request, request.app.state.client)


CurrentRequest = Annotated[ApiRequest, Depends(_api_request)]


def _job(
    api: CurrentRequest,
    job: Annotated[
        str, Path(description="An id, the beginning of one, or a name (of its newest job).")
    ],
) -> str:
    """Return the id of the job. Raises: NoSuchJob, BadRequest, Ambiguous."""
    return find_job(api.client, job, by_key=api.request.method != "POST")


JobId = Annotated[str, Depends(_job)]


@dataclass(frozen=True, slots=True)
class UploadedSpec:
    """The bytes of a spec, and its name in problems."""

    body: bytes
    source: str

    def written(self) -> Written:
        """Parse the spec. Raises: SpecError."""
        return written_in(read_bytes(self.body, self.source), self.source, None)


async def _body(request: Request) -> UploadedSpec:
    is_json = "json" in request.headers.get("content-type", "")
    return UploadedSpec(await request.body(), "spec.json" if is_json else "spec.yaml")


SentSpec = Annotated[UploadedSpec, Depends(_body)]


def _spec(sent: SentSpec) -> Written:
    return sent.written()


WrittenSpec = Annotated[Written, Depends(_spec)]
SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": (
            "A job spec, as docs/spec.md describes it; `unstuck validate --schema` has its schema."
        ),
        "content": {
            kind: {"schema": {"type": "object"}}
            for kind in ("application/yaml", "application/json")
        },
    }
}


def with_places(spec: Written, act: Callable[[], T]) -> T:
    """Return the result of ``act``. Its errors name lines of ``spec``. Raises: SpecError."""
    try:
        return act()
    except SpecError as error:
        raise SpecError(
            [
                spec_problem if spec_problem.line else spec.located(spec_problem)
                for spec_problem in error.problems
            ]
        ) from None


def params_of(texts: Sequence[str]) -> dict[str, UnparsedText]:
    """Return ``{"year": UnparsedText("2013")}`` for ``["year=2013"]``. Raises: BadRequest."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise BadRequest(f"param: {text!r} is not NAME=VALUE")
    return {name: UnparsedText(value) for name, _, value in (text.partition("=") for text in texts)}


def _whole(text: str) -> str:
    """Check that a text can be stored. Raises: ValueError: it has a lone surrogate."""
    text.encode()
    return text


StorableText = Annotated[str, AfterValidator(_whole)]
ReasonField = Annotated[StorableText, Field(max_length=500, description="Why, for the event log.")]
ByField = Annotated[
    StorableText | None, Field(max_length=100, description="Who asks, for the event log.")
]


TAKE_OVER = "Publish also datasets that another job owns, and own them from then on."


def refused(text: str) -> Response:
    """Return the response to a command that the state of its subject does not allow."""
    document = ProblemDetails.of_code("REFUSED", 409, text)
    return problem(document)


def problem(document: ProblemDetails, headers: Mapping[str, str] | None = None) -> Response:
    text = json_text(document).encode(errors="replace")
    return Response(text, document.status, dict(headers or {}), MEDIA_TYPE)
