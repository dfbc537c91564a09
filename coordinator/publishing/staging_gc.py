"""The staging collector removes the staging of jobs that have ended, when it can no longer be needed.

It looks at a job twice: once when no worker can hold a lease on it, for attempts that count for nothing; and once when
the job is forgotten, for everything that no entry of the warehouse log names. Every look may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import redis

from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.staging import Kept, expired_staging, folder_of, named_by, owner, stale_attempts
from unstuck.coordinator.store.jobs import Store
from unstuck.coordinator.store.staging_index import MARGIN, Staged, StagingIndex
from unstuck.tasks.errors import LogBroken, WarehouseMismatch
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)
BATCH = 20  # jobs taken by one sweep
TERM = 600.0  # seconds until a job is looked at again whose coordinator died, or had trouble
WAIT = 3600.0  # seconds between looks at staging that a retry holds, or that this host does not see
GIVE_UP = 30 * 86400.0  # seconds after its retention for which the removal of a job's staging is tried
CACHED_JOBS = 100_000


@dataclass(slots=True)
class _Naming:
    """Slots of one warehouse log above ``after`` and up to ``upto``, by the jobs whose folders they name.

    Kept between looks, so that each entry is read about once, however many jobs are swept.
    """

    after: int
    upto: int
    slots: dict[str, set[int]] = field(default_factory=dict)


class StagingCollector:
    """Collects staging, one warehouse at a time. Several coordinators may do so at once."""

    def __init__(self, index: StagingIndex, store: Store, background: Background) -> None:
        self._index = index
        self._store = store
        self._background = background
        self._named: dict[str, _Naming] = {}

    def start(self, now: float) -> None:
        """Begin with the jobs that are due at ``now`` (seconds by the clock of Redis). Never raises or waits for files.

        A warehouse that hangs holds up only its own jobs.
        """
        try:
            taken = self._index.take(now, BATCH, TERM)
        except redis.RedisError as error:
            log.warning("the index of staging could not be read, staging is collected later: %s", error)
            return
        for place in {(staged.warehouse, staged.warehouse_id) for staged in taken}:
            batch = [staged for staged in taken if (staged.warehouse, staged.warehouse_id) == place]
            # Jobs of a warehouse that is being collected are given out again after their term.
            self._background(place[0], place[0], partial(self._collect, batch, now))

    def _collect(self, batch: Sequence[Staged], now: float, progressed: Callable[[], None]) -> None:
        for staged in batch:
            self._look_or_leave(staged, now)
            progressed()

    def _look_or_leave(self, staged: Staged, now: float) -> None:
        try:
            self._look(staged, now)
        except WarehouseMismatch as error:
            self._trouble(staged, now, error, WAIT)
        except Exception as error:  # noqa: BLE001 - a warehouse's client may raise anything: this job is looked at later
            self._trouble(staged, now, error, TERM)

    def _trouble(self, staged: Staged, now: float, error: Exception, wait: float) -> None:
        """Log the error and try again later; give up in the end, since a warehouse may be gone for ever."""
        over = now > staged.forget_at + GIVE_UP
        log.warning(
            "the staging of job %s (%s in %s) could not be collected: %s: %s. %s",
            *(staged.job, folder_of(staged.job), staged.warehouse, type(error).__name__, error),
            "It is left as it is, for people to remove" if over else f"It is tried again in {wait / 60:.0f} minutes",
        )
        try:
            if over:
                self._index.done(staged.job)
            else:
                self._index.later(staged.job, now + wait)
        except redis.RedisError as away:
            log.warning("the staging of job %s is looked at again after its term: %s", staged.job, away)

    def _look(self, staged: Staged, now: float) -> None:
        """Raises: OSError, UnstuckError, redis.RedisError: the look stopped; all that it removed was not needed."""
        job = staged.job
        warehouse = Warehouse(staged.warehouse)
        warehouse.check_id(staged.warehouse_id)
        retries = self._index.retries()
        state = self._store.load(job)
        forgotten = state is None and now >= staged.forget_at
        if job in retries.of or (state is not None and not state.job.terminal):
            self._index.later(job, now + WAIT)
            return
        if state is None and not forgotten:
            self._index.later(
                job, staged.forget_at + MARGIN
            )  # the record that says which attempts count is gone, so all of them stay
            return
        counting = {record.staging for record in state.groups.values()} - {""} if state is not None else set()
        held = counting | retries.folders
        listing = _listing(warehouse.storage, job)
        which = expired_staging if forgotten else stale_attempts
        removed = which(job, listing, Kept(held))
        if removed:  # only then is the log worth reading
            named = self._folders_named(warehouse, staged)
            removed = which(job, listing, Kept(held | named))
        for path in removed:
            warehouse.storage.remove_tree(path)
        if removed:
            log.info(
                "job %s: %d folders and files of its staging in %s were removed", job, len(removed), staged.warehouse
            )
        if not forgotten:
            self._index.later(job, max(staged.forget_at, now) + MARGIN)
        elif any(owner(folder) == job for folder in retries.folders):
            self._index.later(job, now + WAIT)
        else:
            self._index.done(job)

    def _folders_named(self, warehouse: Warehouse, staged: Staged) -> set[str]:
        """The folders of the job that the log names, in the job's own entry or in one of a job that adopted them.

        Raises:
            LogBroken: an entry is missing, or the log ends before the job began: what it names is unknown.
        """
        known = self._named.get(staged.warehouse_id)
        if known is None or len(known.slots) > CACHED_JOBS:
            known = _Naming(staged.base, staged.base)
        # Read before the log: another look may overtake one that hangs.
        stood = max(known.upto, staged.base)
        head = warehouse.head()
        if head < stood:
            self._named.pop(staged.warehouse_id, None)
            raise LogBroken(
                f"the log at {warehouse.storage.uri('')} ends at version {head}, but stood at "
                f"{stood} before: the warehouse seems to have been restored from an older copy"
            )
        first = min(known.after, staged.base)
        found: dict[str, set[int]] = {}
        for n in (*range(first + 1, known.after + 1), *range(known.upto + 1, head + 1)):
            for folder in _entry_folders(warehouse, n):
                found.setdefault(owner(folder) or "", set()).add(n)
        for job, slots in found.items():
            known.slots.setdefault(job, set()).update(slots)
        known.after, known.upto = first, head
        self._named[staged.warehouse_id] = known
        mine = tuple(known.slots.get(staged.job, ()))  # a copy: another look may add to it
        return {folder for n in mine for folder in _entry_folders(warehouse, n)}


def _entry_folders(warehouse: Warehouse, n: int) -> set[str]:
    entry = warehouse.entry(n)
    if entry is None:
        raise LogBroken(f"entry {n} of the log at {warehouse.storage.uri('')} is missing, though later ones stand")
    return named_by(entry)


def _listing(files: Files, job: str) -> dict[str, list[str]]:
    """What stands in the job's staging folder. Raises: OSError."""
    top = folder_of(job)
    return {group: _names(files, f"{top}/{group}") for group in files.names(top)}


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except NotADirectoryError:
        return []  # a file that this project did not write
