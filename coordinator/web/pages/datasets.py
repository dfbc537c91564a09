"""The screens of datasets: the list of them, and one dataset with its versions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unstuck.coordinator.web.rendering import client_of, page
from unstuck.tasks.warehouse.log import Warehouse


def datasets(request: Request) -> Response:
    place = client_of(request).settings.warehouse
    found = sorted(Warehouse(place).state().items())
    seen = [(name, state.changed) for name, state in found]
    return page(request, "datasets.html", seen=seen, place=place, datasets=found)


ROUTES = [Route("/datasets", datasets)]
