"""Finds the runs of a schedule in the warehouse log, for a store that has lost them."""

from __future__ import annotations

from itertools import islice

from unstuck.coordinator.model.schedule_record import RunSuccess
from unstuck.coordinator.model.tick import tick_of_key
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry

LOOKED_AT = 1000  # of the newest entries
# For ticks that are skipped; more entries were not written since the snapshot of a Redis.
MAX_ENTRIES_READ = 10_000


def last_run(place: Warehouse, schedule: str) -> RunSuccess | None:
    """Return the newest run of a schedule among the newest entries of the log; None if none.

    Raises: LogBroken, WarehouseNewer, OSError.
    """
    head = place.head()
    for n in range(head, max(0, head - LOOKED_AT), -1):
        entry = place.existing_entry(n)
        tick = _tick_of(entry.package_id, schedule)
        if tick is not None:
            return _run_of(n, entry, tick)
    return None


def runs_since(
    place: Warehouse, schedule: str, since: float, cached: dict[int, tuple[float, str, str]]
) -> dict[float, RunSuccess]:
    """Return by tick the newest run of ``schedule`` that was published since ``since``.

    Only the newest `MAX_ENTRIES_READ` entries are read. Arguments and errors are those of
    `Warehouse.find_since`.
    """
    slots: dict[float, int] = {}
    for n, _, package_id in islice(place.ids_since(place.head(), since, cached), MAX_ENTRIES_READ):
        tick = _tick_of(package_id, schedule)
        if tick is not None:
            slots.setdefault(tick, n)
    return {tick: _run_of(n, place.existing_entry(n), tick) for tick, n in slots.items()}


def _tick_of(package_id: str, schedule: str) -> float | None:
    return tick_of_key(package_id) if package_id.startswith(f"{schedule}@") else None


def _run_of(n: int, entry: Entry, tick: float) -> RunSuccess:
    rows = {name: change.rows for name, change in entry.datasets.items()}
    return RunSuccess(entry.job, tick, entry.at, n, rows)
