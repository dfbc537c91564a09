"""A part of a page that a warehouse must answer: the warehouse may be away while the rest of the
page stands.
"""

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
    """The datasets of the warehouse of this process."""
    datasets: Datasets = request.app.state.datasets
    return datasets


@dataclass(frozen=True, slots=True)
class UnreadableWarehouse:
    """Why a warehouse cannot be read, and the HTTP status that says so."""

    text: str
    status: int


def unreadable_as(instead: D, ask: Callable[[], T]) -> tuple[T | D, UnreadableWarehouse | None]:
    """The answer of a warehouse; if it cannot be read, ``instead`` and why, for a part of a page
    whose rest stands.
    """
    try:
        return ask(), None
    except DatasetNotFound:
        raise
    except BadRequest as error:  # there is none yet
        return instead, UnreadableWarehouse(str(error), 200)
    except (UnstuckError, OSError) as error:
        return instead, UnreadableWarehouse(str(error) or type(error).__name__, 503)
