"""The last run of a schedule whose package stands in the warehouse log, for a store that has lost the schedule."""

from __future__ import annotations

import datetime
import re

from unstuck.coordinator.model.schedule_record import Run, RunSuccess
from unstuck.tasks.warehouse.log import Warehouse

LOOKED_AT = 1000  # of the newest entries
TRIES = 20  # of one tick, whose ids are compared
_ID = re.compile(r"(\d{8}T\d{6})-[a-z0-9]{12}")


def last_run(place: Warehouse, schedule: str) -> RunSuccess | None:
    """The newest of its runs that stands among the newest entries of the log; None if there is none.

    Raises: LogBroken, WarehouseNewer, OSError.
    """
    head = place.head()
    for n in range(head, max(0, head - LOOKED_AT), -1):
        entry = place.existing_entry(n)
        if entry.kind == "package" and entry.job_name == schedule and (tick := _tick_of(entry.job, schedule)):
            rows = {name: change.rows for name, change in entry.datasets.items()}
            return RunSuccess(entry.job, tick, entry.at, n, rows)
    return None


def _tick_of(job: str, schedule: str) -> float | None:
    """The tick of the run of ``schedule`` that is ``job``; None if it is none, or one that a person asked for."""
    if (found := _ID.fullmatch(job)) is None:
        return None
    tick = datetime.datetime.strptime(f"{found[1]}+0000", "%Y%m%dT%H%M%S%z").timestamp()
    return tick if any(Run(tick, n + 1).job_id(schedule) == job for n in range(TRIES)) else None
