"""The hands: what a worker needs to claim, run, stage and report one attempt of a task group.

Nothing in this package imports ``coordinator``. The light half (tokens, groups, reports, leases,
settings, the warehouse reader) never imports Spark.
"""

from tasks.errors import Unrecoverable
from tasks.published import published

__all__ = ["Unrecoverable", "published"]
