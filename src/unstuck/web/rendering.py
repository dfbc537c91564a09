"""Renders the pages: the templates, their filters, and the answer 304 if nothing has changed.

Every text is escaped, and its control characters are replaced, because jobs, errors and reasons are
data from users.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import secrets
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from unstuck.client.client import Client
from unstuck.coordinator.explain.stack_words import stack_lines
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.graph.job_graph import CENSUS
from unstuck.graph.status_marks import css_class, mark
from unstuck.tasks.duration import format_duration
from unstuck.tasks.terminal_text import printable
from unstuck.views.words import one_line
from unstuck.web.safety import HEADERS

HERE = Path(__file__).parent
POLL = 5  # seconds between two refreshes of a visible tab
# Seconds after which a page is rendered again although only its ages ("3m ago") have changed.
AGES = 30
SCREENS = (
    ("Now", "/"),
    ("Jobs", "/jobs"),
    ("Schedules", "/schedules"),
    ("Datasets", "/datasets"),
    ("Fleet", "/fleet"),
)
_HTMX = json.dumps(
    {
        "allowEval": False,
        "allowScriptTags": False,
        "includeIndicatorStyles": False,
        "historyCacheSize": 0,
        "selfRequestsOnly": True,
        "timeout": 10_000,  # milliseconds
        # On a server error the page keeps its content, and live.js shows a message.
        "responseHandling": [
            {"code": "2..", "swap": True},
            {"code": "304", "swap": False},
            {"code": "5..", "swap": False, "error": True},
            {"code": "...", "swap": True, "error": True},
        ],
    }
)


def client_of(request: Request) -> Client:
    """Return the client of this process."""
    client: Client = request.app.state.client
    return client


def log_breaker(request: Request) -> CircuitBreaker:
    """Return the circuit breaker for reads of logs: not every poll reads a warehouse that hangs."""
    breaker: CircuitBreaker = request.app.state.log_breaker
    return breaker


def unchanged(request: Request, etag_data: object) -> Response | None:
    """Return the answer 304 if the browser already has the page with this ``etag_data``; else None.

    A screen calls this before it reads what only a changed page needs. `page` checks the same.
    """
    if request.headers.get("if-none-match") != _tag(request, etag_data):
        return None
    return Response(status_code=304, headers={"ETag": _tag(request, etag_data)})


def page(
    request: Request, template: str, *, etag_data: object = None, status: int = 200, **model: Any
) -> Response:
    """Render the page ``template`` with the values of ``model``.

    Args:
        etag_data: all data of the page, or data that changes with it, such as the commit ids of its
            jobs. If the browser has the page with the same data, the answer is 304 and nothing is
            rendered. None: always rendered.
    """
    if etag_data is not None and (same := unchanged(request, etag_data)):
        return same
    state, path, query = request.app.state, request.url.path, request.query_params
    tag = "" if etag_data is None else _tag(request, etag_data)
    text = (
        environment()
        .get_template(template)
        .render(
            **model,
            request=request,
            now=time.time(),
            poll=POLL if request.method == "GET" else 0,
            tag=tag,
            url=_address(request),
            screens=[(name, href, _is_current(href, path)) for name, href in SCREENS],
            read_only=state.read_only,
            user=request.scope.get("unstuck.user", ""),
            said=state.answers.text(query.get("said", "")),
            once=lambda: secrets.token_hex(8),
            htmx_config=_HTMX,
        )
    )
    # Errors of user code may hold half of a surrogate pair.
    return HTMLResponse(
        text.encode(errors="replace"), status, {**HEADERS, **({"ETag": tag} if tag else {})}
    )


def _address(request: Request) -> str:
    """Return the address by which the live part is refreshed, without the message of an action."""
    return str(request.url.remove_query_params("said").replace(scheme="", netloc=""))


def _tag(request: Request, etag_data: object) -> str:
    state = request.app.state
    parts = (
        etag_data,
        _address(request),
        request.scope.get("unstuck.user", ""),
        state.read_only,
        state.started,
    )
    content = repr((*parts, int(time.time() // AGES))).encode(errors="replace")
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _is_current(href: str, path: str) -> bool:
    return path == href or (href != "/" and path.startswith(f"{href}/"))


@cache
def environment() -> Environment:
    """Return the templates with their filters and functions."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "ago": ago,
        "at": clock_time,
        "with_clock_times": with_clock_times,
        "lasting": lasting,
        "status": status,
        "duration": lambda seconds: "" if seconds is None else format_duration(max(0.0, seconds)),
        "number": lambda number: "" if number is None else f"{number:,}",
        "one_line": one_line,
    }
    templates.globals["asset"] = asset
    templates.globals["stack_lines"] = stack_lines
    templates.globals["group_states"] = list(CENSUS)
    return templates


def _shown(value: object) -> object:
    return printable(value) if type(value) is str else value


def status(word: str) -> Markup:
    """Return a status or state with its sign, in its color."""
    sign = mark(word).symbol
    return Markup('<span class="status {}" data-sign="{}">{}</span>').format(
        css_class(word), sign, str(word)
    )


def ago(at: float | None, now: float | None = None) -> Markup:
    """Return the age of a time, such as ``3m05s ago``, with the time in the tooltip.

    Empty for 0 and None.
    """
    if not at:
        return Markup("")
    apart = (time.time() if now is None else now) - at
    return _time(
        at, f"{format_duration(apart)} ago" if apart >= 0 else f"in {format_duration(-apart)}"
    )


def lasting(since: float) -> Markup:
    """Return the time since then, such as ``3m05s``, with the time in the tooltip."""
    return _time(since, format_duration(max(0.0, time.time() - since)))


def clock_time(at: float | None, zone: datetime.tzinfo | None = None) -> Markup:
    """Return a time with its offset from UTC, such as ``2026-11-29 02:30:00+01:00``.

    Args:
        at: seconds since the epoch; empty for 0 and None.
        zone: of the clock; None for that of this host.
    """
    return _time(at, _local_text(at, zone)) if at else Markup("")


def with_clock_times(sentence: str, zone: datetime.tzinfo | None = None) -> str:
    """Write the UTC times of a sentence as `clock_time` does, except those in commands."""

    def shown(match: re.Match[str]) -> str:
        with suppress(ValueError, OverflowError):  # data of users may only look like a time
            if match["time"]:
                at = datetime.datetime.fromisoformat(match["time"])
                return _local_text(at.timestamp(), zone)
        return match[0]

    return _UTC_TIME.sub(shown, sentence)


# A command is in backticks. In the key of a run, the tick is after an @.
_UTC_TIME = re.compile(
    r"`[^`]*`|(?<![\w@])(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)(?!\w)", re.ASCII
)


def _time(at: float, text: str) -> Markup:
    local = _local_text(at)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        local.replace(" ", "T"), local, text
    )


def _local_text(at: float, zone: datetime.tzinfo | None = None) -> str:
    local = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone(zone)
    return local.isoformat(sep=" ", timespec="seconds")


@cache
def asset(name: str) -> str:
    """Return the address of a static file, which changes with the content, so browsers cache it."""
    digest = hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"
