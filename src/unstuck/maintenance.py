"""Steps that look after a warehouse. ``compact: NAME`` in a spec is the first."""

from __future__ import annotations

from typing import Any

from unstuck import DatasetNotFound, StepContext, Unrecoverable
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.upkeep import TARGET, Upkeep
from unstuck.tasks.settings import settings
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse


def compact(spark: Any, ctx: StepContext, dataset: str, target: int = TARGET) -> None:
    """Write the small files of a published dataset together, as ``unstuck compact`` does.

    A repeat finds nothing left to do, and two at once do no harm. The results are those of ``unstuck compact --json``:
    ``version`` (0: there was nothing to do), ``before``, ``after``, ``bytes``, ``held``.

    Args:
        spark: not used; the group may say ``spark: false``.
        target: size of the new files in MB; files below half of it count as small.

    Raises:
        Unrecoverable: there is no such dataset, or it is a Delta table.
        OSError, redis.RedisError: the warehouse or Redis did not answer; a retry may help.
    """
    with connect(settings().redis_url) as client:
        try:
            done = Upkeep(Warehouse(ctx.warehouse), client, settings()).compact(
                dataset, target=target, progress=ctx.progress
            )
        except (BadRequest, DatasetNotFound) as error:
            raise Unrecoverable(str(error)) from error
    for name in ("version", "before", "after", "bytes", "held"):
        ctx.result(name, getattr(done, name))
    ctx.log.info("%s: %d files are %d now; %d small ones are held", dataset, done.before, done.after, done.held)
