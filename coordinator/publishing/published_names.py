"""The names of the published datasets, for suggestions in errors.

An unreadable warehouse must not hide the error.
"""

from __future__ import annotations

from collections.abc import Collection

from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.warehouse.log import Warehouse

ANSWER_WITHIN = 4.0  # seconds


def published_names(uri: str, breaker: CircuitBreaker) -> Collection[str]:
    """Return the names of the datasets in the warehouse at ``uri``; none if it cannot be read."""
    try:
        return breaker.call(
            uri, "no name is suggested", lambda: Warehouse(uri).state(), ANSWER_WITHIN
        )
    except (UnstuckError, OSError, ValueError):
        return ()
