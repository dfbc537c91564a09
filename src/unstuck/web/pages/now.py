"""The screen Now: what is not well, each with its sentence; what goes on; what ended in the last
day.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.client.now import LATELY, MOST, Seen, Trouble, ended_lately, troubles, waits_now
from unstuck.web.rendering import client_of, page, unchanged


def now(request: Request) -> Response:
    client = client_of(request)
    snapshot = Seen.of(client)
    reported, ended = troubles(snapshot), ended_lately(snapshot)
    # The sentences of a fleet hold durations; they are rendered anew with the ages.
    etag_data = (
        [
            replace(trouble, text="") if _href(trouble) == "/fleet" else trouble
            for trouble in reported
        ],
        snapshot.going_on,
        ended,
    )
    if same := unchanged(request, etag_data):
        return same
    waits = waits_now(client, snapshot, reported)
    return page(
        request,
        "now.html",
        etag_data=etag_data,
        troubles=[(trouble, _href(trouble)) for trouble in reported[: 2 * MOST]],
        more_troubles=max(0, len(reported) - 2 * MOST),
        going_on=snapshot.beside(reported),
        more=len(snapshot.going_on) > MOST,
        ended=ended[:MOST],
        waits=waits,
        at=snapshot.at,
        lately=LATELY,
    )


def _href(trouble: Trouble) -> str:
    """The screen that says more of it."""
    if trouble.kind == "job":
        return (
            f"/jobs?name={quote(trouble.name)}"
            if trouble.job is None
            else f"/jobs/{quote(trouble.job.id, safe='')}"
        )
    return f"/schedules/{quote(trouble.name, safe='')}" if trouble.kind == "schedule" else "/fleet"


ROUTES = [Route("/", now)]
