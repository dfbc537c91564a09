"""Vacuum: removes published files that no kept version of the warehouse names.

The oldest kept version is recorded before files are removed, so a reader of an older one gets an
error that it is gone. The next vacuum finishes one that died, and concurrent vacuums are safe.
"""
# A job may be stored while this runs. Its submit reads the log, and stores the job only if no
# vacuum was counted meanwhile. The vacuum writes into the log, is counted, and then reads the jobs.
# So one of the two sees the other. Files that entries up to the oldest kept version removed may go,
# except files of a kept version: two retries of one job may publish the same file, one after the
# other. A checkpoint removes the one before it.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from unstuck.tasks.warehouse.log import Warehouse

STAGING = "_staging/"


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The files that a vacuum removed, or would remove.

    Attributes:
        oldest: the oldest version that can be read afterwards; 0 if nothing is published.
        files, bytes: number and size of the removed files.
        kept: number of files that a job may need, so a later vacuum removes them.
        kept_for: a job that may read an older version, for which more files stay; empty without
            one.
    """

    oldest: int
    files: int
    bytes: int
    kept: int
    kept_for: str = ""


def vacuum(
    warehouse: Warehouse,
    needed: Callable[[str], bool],
    *,
    keep: int,
    before: float,
    reading: Callable[[int], tuple[int, str] | None] = lambda removed: None,
    counted: Callable[[], None] = lambda: None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Vacuumed:
    """Remove the files of old versions.

    Args:
        needed: returns whether a job may need the attempt folder of a file.
        keep: minimum number of kept versions, including the newest.
        before: seconds since the epoch; versions that were the newest at that time or later are
            kept.
        reading: returns the oldest version that a job may read, and that job; None without one. The
            argument is the version up to which an earlier vacuum removed everything.
        counted: called when the log says which versions stay. Afterwards no job is stored that
            checked the warehouse before.
        dry_run: count, but remove nothing.
        progress: called with the number of checked files and of all files.

    Raises:
        LogBroken, WarehouseNewer: the log cannot be read, and nothing was removed.
        OSError: a file could not be removed. A repeat is safe.
    """
    removed = warehouse.vacuumed()
    noted, head = warehouse.readable()

    def hold(oldest: int) -> tuple[int, str]:
        """Return ``oldest``, or an earlier version that a job may read, and that job."""
        held = reading(removed) if oldest > removed else None
        return (oldest, "") if held is None else min((oldest, ""), held)

    # What an earlier vacuum announced is removed, even if this one would keep more.
    oldest, kept_for = hold(max(_oldest_kept(warehouse, head, keep, before), noted))
    # A log that cannot be read raises here, before anything is announced.
    removable = _removable(warehouse, removed, oldest, head)
    if oldest > removed and not dry_run:
        noted = max(noted, oldest)
        warehouse.keep_from(noted)
        counted()
        late, late_reader = hold(oldest)
        if late_reader:
            oldest, kept_for = late, late_reader
            removable = _removable(warehouse, removed, oldest, head)
    sizes: list[int] = []
    kept = 0
    for number, path in enumerate(removable):
        progress(number, len(removable))
        if needed(path):
            kept += 1
        else:
            sizes += _remove(warehouse, path, dry_run=dry_run)
    if not dry_run and not kept and oldest > removed:
        warehouse.finish_vacuum(oldest)
    return Vacuumed(max(oldest, noted), len(sizes), sum(sizes), kept, kept_for)


def _remove(warehouse: Warehouse, path: str, *, dry_run: bool) -> list[int]:
    """Remove a file. Return its size; nothing if an earlier vacuum that died removed it."""
    size = warehouse.storage.size(path)
    if size is None:
        return []
    if not dry_run:
        warehouse.storage.remove_file(path)
    return [size]


def _oldest_kept(warehouse: Warehouse, head: int, keep: int, before: float) -> int:
    """Return the newest version at ``before``, or an older one so that ``keep`` versions stay."""
    n = min(head, max(head - keep + 1, 0))
    while n > 0 and warehouse.existing_entry(n).at > before:
        n -= 1
    return n


def _removable(warehouse: Warehouse, removed: int, oldest: int, head: int) -> list[str]:
    """Return the files that versions ``removed`` to ``oldest`` removed and no later one has."""
    if oldest <= removed:
        return []
    gone = chain.from_iterable(_removed_by(warehouse, n) for n in range(removed + 1, oldest + 1))
    live = _live(warehouse, oldest, head)
    return [path for path in dict.fromkeys(gone) if path.startswith(STAGING) and path not in live]


def _live(warehouse: Warehouse, oldest: int, head: int) -> set[str]:
    """Return the files of all versions from ``oldest`` to ``head``."""
    live: set[str] = set()
    for dataset in warehouse.state(oldest, removed=True).values():
        live.update(file.path for file in dataset.files)
    for n in range(oldest + 1, head + 1):
        for change in warehouse.existing_entry(n).datasets.values():
            live.update(file.path for file in change.added)
    return live


def _removed_by(warehouse: Warehouse, n: int) -> Iterator[str]:
    """Yield the files that the entry ``n`` removes from its datasets."""
    entry = warehouse.existing_entry(n)
    if entry.tables and not warehouse.tables_written(n):
        return  # the next publish into these tables writes this entry first
    for change in entry.datasets.values():
        yield from change.removed
        if change.checkpoint is not None:  # a later job reads on from a later checkpoint
            yield from (change.checkpoint.after, change.checkpoint.after_state)
