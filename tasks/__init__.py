"""The hands: what a worker needs to claim, run, stage and report one attempt of a task group.

Nothing in this package imports ``coordinator``. The light half (tokens, groups, reports, leases,
settings, the warehouse reader) never imports Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.errors import Unrecoverable

if TYPE_CHECKING:
    from tasks.reader import published

__all__ = ["Unrecoverable", "published"]


def __getattr__(name: str) -> Any:
    # On first use (PEP 562): a watchdog and the command line import this package and never read a warehouse.
    if name == "published":
        from tasks.reader import published

        return published
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
