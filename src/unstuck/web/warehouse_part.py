"""The parts of a page that need a warehouse, which may be unavailable while the rest works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from unstuck.coordinator.errors import BadRequest
from unstuck.tasks.errors import DatasetNotFound, UnstuckError
from unstuck.views.dataset_views import Datasets

D = TypeVar("D")
T = TypeVar("T")


def datasets_of(request: Request) -> Datasets:
    """Return the datasets of the warehouse of this process."""
    datasets: Datasets = request.app.state.datasets
    return datasets


@dataclass(frozen=True, slots=True)
class UnreadableWarehouse:
    """The reason why a warehouse cannot be read, and the HTTP status for it."""

    text: str
    status: int


def unreadable_as(instead: D, ask: Callable[[], T]) -> tuple[T | D, UnreadableWarehouse | None]:
    """Return the answer of a warehouse, or ``instead`` and the reason if it cannot be read."""
    try:
        return ask(), None
    except DatasetNotFound:
        raise
    except BadRequest as error:  # there is no warehouse yet
        return instead, UnreadableWarehouse(str(error), 200)
    except (UnstuckError, OSError) as error:
        return instead, UnreadableWarehouse(str(error) or type(error).__name__, 503)
