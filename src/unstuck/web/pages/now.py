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
    seen = Seen.of(client)
    found, ended = troubles(seen), ended_lately(seen)
    # The sentences of a fleet hold durations; they are rendered anew with the ages.
    known = (
        [replace(one, text="") if _href(one) == "/fleet" else one for one in found],
        seen.going_on,
        ended,
    )
    if same := unchanged(request, known):
        return same
    waits = waits_now(client, seen, found)
    return page(
        request,
        "now.html",
        seen=known,
        troubles=[(one, _href(one)) for one in found[: 2 * MOST]],
        more_troubles=max(0, len(found) - 2 * MOST),
        going_on=seen.beside(found),
        more=len(seen.going_on) > MOST,
        ended=ended[:MOST],
        waits=waits,
        at=seen.at,
        lately=LATELY,
    )


def _href(one: Trouble) -> str:
    """The screen that says more of it."""
    if one.kind == "job":
        return (
            f"/jobs?name={quote(one.name)}"
            if one.job is None
            else f"/jobs/{quote(one.job.id, safe='')}"
        )
    return f"/schedules/{quote(one.name, safe='')}" if one.kind == "schedule" else "/fleet"


ROUTES = [Route("/", now)]
