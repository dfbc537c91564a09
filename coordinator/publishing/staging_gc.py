"""The staging collector removes the staging of ended jobs when it is no longer needed.

It checks each job twice. When no worker can hold a lease on the job, it removes attempts that do
not count. When the job's retention is over, it removes everything that no entry of the warehouse
log names. Every check may be repeated.
"""
# ``_staging/<job>/<group>/<epoch>-<nonce>-<claimant>/`` is the folder of one attempt, ``job.logs``
# that of all logs. In case of doubt a file stays: one that is kept for nothing costs disk, one that
# is removed too early costs data.

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import redis

from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.vacuum import vacuum
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.errors import LogBroken
from unstuck.tasks.log_lines import about
from unstuck.tasks.protocol.staging import MARGIN, Staged
from unstuck.tasks.protocol.token import JOB_ID
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry

log = logging.getLogger(__name__)
BATCH = 20  # jobs taken by one sweep
# Seconds until a job is looked at again: a retry holds its staging, or the look had trouble or
# died.
TERM = 3600.0
# Seconds after its retention for which the removal of a job's staging is retried.
GIVE_UP = 30 * 86400.0
CACHED_ENTRIES = 100_000  # of one warehouse log
_ATTEMPT = re.compile(r"\d+-\w+-\w+")
_DEPTH = 4  # parts in the path of an attempt's folder

Listing = Mapping[str, Sequence[str]]  # names in a job's staging folder → the names in each


class StagingCollector:
    """Collects staging, one warehouse at a time. Several coordinators may do so at once."""

    def __init__(
        self, index: StagingIndex, store: Store, background: Background, settings: Settings
    ) -> None:
        """Create the collector.

        Old versions are removed about once in `TERM`, in warehouses of ended jobs.

        Args:
            settings: which versions of a warehouse stay.
        """
        self._index = index
        self._store = store
        self._background = background
        self._settings = settings
        self._next_vacuum: dict[str, float] = {}  # by the URI of the warehouse
        # The id of a warehouse → number in its log → the jobs whose folders the entry names, so
        # that each entry is read about once, however many jobs are looked at.
        self._named: dict[str, dict[int, frozenset[str]]] = {}

    def start(self, now: float) -> None:
        """Start to collect the jobs that are due at ``now``, in seconds by the clock of Redis.

        It never raises, and never waits for files. A warehouse that hangs delays only its own jobs.
        """
        try:
            taken = self._index.take(now, BATCH, TERM)
        except redis.RedisError as error:
            log.warning(
                "the index of staging could not be read, staging is collected later: %s", error
            )
            return
        for place in {(staged.warehouse, staged.warehouse_id) for staged in taken}:
            batch = [staged for staged in taken if (staged.warehouse, staged.warehouse_id) == place]
            # Jobs of a warehouse that is being collected are given out again after their term.
            self._background(place[0], place[0], partial(self._collect, batch, now))

    def _collect(self, batch: Sequence[Staged], now: float, progressed: Callable[[], None]) -> None:
        for staged in batch:
            with about(job=staged.job):
                try:
                    self._look(staged, now)
                except Exception as error:  # noqa: BLE001 - a client may raise anything
                    self._trouble(staged, now, error)
            progressed()
        keep = self._settings.versions_kept(batch[0].warehouse)
        if keep is not None and now >= self._next_vacuum.get(batch[0].warehouse, 0.0):
            self._next_vacuum[batch[0].warehouse] = now + TERM
            self._vacuum(batch[0], keep, now, progressed)

    def _vacuum(
        self, staged: Staged, keep: int, now: float, progressed: Callable[[], None]
    ) -> None:
        # With its id: if another warehouse is mounted there meanwhile, nothing of it is removed.
        warehouse = Warehouse(staged.warehouse, staged.warehouse_id)
        try:
            warehouse.check_id(staged.warehouse_id)
            done = vacuum(
                warehouse,
                self._index.needed(),
                keep=keep,
                before=now - self._settings.keep_versions_for,
                reading=partial(self._index.oldest_read, staged.warehouse_id),
                counted=partial(self._index.count_vacuum, staged.warehouse_id),
                progress=lambda number, total: progressed(),
            )
        except Exception as error:  # noqa: BLE001 - as for a look: it is tried again after the term
            log.warning(
                "old versions in %s were not removed: %s: %s",
                staged.warehouse,
                type(error).__name__,
                error,
            )
            return
        if done.files:
            log.info(
                "%d files of versions before %d in %s were removed",
                done.files,
                done.oldest,
                staged.warehouse,
            )

    def _trouble(self, staged: Staged, now: float, error: Exception) -> None:
        """Log the error; give up in the end, since a warehouse may be gone for ever."""
        over = now > staged.forget_at + GIVE_UP
        what = (
            f"the staging of job {staged.job} ({folder_of(staged.job)} in {staged.warehouse}) "
            "could not be collected"
        )
        then = f"It is tried again in {TERM / 60:.0f} minutes"
        if over:
            then = "It is left for people to remove"
        log.warning("%s: %s: %s. %s", what, type(error).__name__, error, then)
        if over:
            with suppress(redis.RedisError):  # it is given up after the next look
                self._index.done(staged.job)

    def _look(self, staged: Staged, now: float) -> None:
        """Look at one job, which is due again after `TERM` unless this sets another time.

        Raises: OSError, UnstuckError, redis.RedisError: the look stopped. Nothing needed was
        removed.
        """
        job = staged.job
        warehouse = Warehouse(staged.warehouse)
        warehouse.check_id(staged.warehouse_id)
        retries = self._index.retries()
        state = self._store.load(job)
        if job in retries.of or (state is not None and not state.job.terminal):
            return
        needed = set(retries.folders)
        if state is not None:
            needed.update(record.staging for record in state.groups.values())
            self._remove(warehouse, staged, stale_attempts, needed)
            self._index.later(job, max(staged.forget_at, now) + MARGIN)
        elif now < staged.forget_at:
            # The record that says which attempts count is gone, so all of them stay.
            self._index.later(job, staged.forget_at + MARGIN)
        else:
            self._remove(warehouse, staged, expired_staging, needed)
            if all(owner(folder) != job for folder in retries.folders):
                self._index.done(job)

    def _remove(
        self,
        warehouse: Warehouse,
        staged: Staged,
        removable: Callable[[str, Listing, Kept], list[str]],
        needed: set[str],
    ) -> None:
        """Remove the staging of a job that is neither ``needed`` nor named in the log."""
        job, listing = staged.job, _listing(warehouse.storage, staged.job)
        if not removable(job, listing, Kept(needed)):
            return  # the log need not be read
        named = self._folders_named(warehouse, staged)
        paths = removable(job, listing, Kept(needed | named))
        for path in paths:
            warehouse.storage.remove_tree(path)
        if paths:
            log.info(
                "job %s: %d folders and files of its staging in %s were removed",
                job,
                len(paths),
                staged.warehouse,
            )

    def _folders_named(self, warehouse: Warehouse, staged: Staged) -> set[str]:
        """Return the folders of the job that the log names, in its entry or in that of an adopter.

        Raises:
            LogBroken: an entry is missing, or the log ends before the job began.
        """
        cached = self._named.setdefault(staged.warehouse_id, {})
        if len(cached) > CACHED_ENTRIES:
            cached.clear()
        # Read before the log: another look may overtake one that hangs.
        stood = max((staged.base, *cached))
        head = warehouse.head()
        if head < stood:
            cached.clear()
            raise LogBroken(
                f"the log at {warehouse.storage.uri('')} ends at version {head}, but ended at "
                f"{stood} before: the warehouse seems to have been restored from an older copy"
            )
        folders: set[str] = set()
        for n in range(staged.base + 1, head + 1):
            owners = cached.get(n)
            if owners is None:
                owners = cached[n] = frozenset(
                    owner(folder) or "" for folder in _entry_folders(warehouse, n)
                )
            if staged.job in owners:
                folders |= _entry_folders(warehouse, n)
        return folders


def remove_staging(warehouse: Warehouse, job: str, base: int) -> None:
    """Remove the staging of a job that the log does not name, if no other job will ever retry it.

    Args:
        base: the version of the warehouse at which the job was submitted.

    Raises: OSError, UnstuckError: the warehouse cannot be read. Nothing needed was removed.
    """
    number = warehouse.find_publish(job, base)
    needed = Kept(set() if number is None else _entry_folders(warehouse, number))
    for path in expired_staging(job, _listing(warehouse.storage, job), needed):
        warehouse.storage.remove_tree(path)


def _entry_folders(warehouse: Warehouse, n: int) -> set[str]:
    entry = warehouse.entry(n)
    if entry is None:
        raise LogBroken(
            f"entry {n} of the log at {warehouse.storage.uri('')} is missing, though later ones "
            "exist"
        )
    return named_by(entry)


def _listing(files: Files, job: str) -> dict[str, list[str]]:
    """List the job's staging folder. Raises: OSError."""
    top = folder_of(job)
    return {group: _names(files, f"{top}/{group}") for group in files.names(top)}


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except NotADirectoryError:
        return []  # a file that this project did not write


def folder_of(job: str) -> str:
    """Return the folder of all attempts of ``job``. Raises: ValueError: not a job id."""
    if not JOB_ID.fullmatch(job):
        raise ValueError(f"not a job id: {job[:100]!r}")
    return f"_staging/{job}"


def owner(path: str) -> str | None:
    """Return the job whose staging contains ``path``; None if no job's does."""
    parts = path.split("/")
    return parts[1] if len(parts) > 1 and parts[0] == "_staging" else None


def named_by(entry: Entry) -> set[str]:
    """Return the folders of attempts that an entry of the warehouse log needs."""
    files = (file.path for change in entry.datasets.values() for file in change.added)
    return {"/".join(path.split("/")[:_DEPTH]) for path in (*files, *entry.tokens)}


class Kept:
    """Paths that must stay, with everything above and below them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)
        self._above = {above for path in self._paths for above in _line(path)}

    def __contains__(self, path: str) -> bool:
        """Return whether the removal of ``path`` would remove a path that must stay."""
        return path in self._above or any(above in self._paths for above in _line(path))


def stale_attempts(job: str, listing: Listing, kept: Kept) -> list[str]:
    """Return folders of attempts that do not count. Logs and all other folders stay."""
    folders = (
        f"{folder_of(job)}/{group}/{name}" for group, names in listing.items() for name in names
    )
    return [
        path for path in folders if _ATTEMPT.fullmatch(path.rpartition("/")[2]) and path not in kept
    ]


def expired_staging(job: str, listing: Listing, kept: Kept) -> list[str]:
    """Return the staging of ``job`` to remove after its retention, in whole folders if possible."""
    top = folder_of(job)
    if not listing:
        return []
    if top not in kept:
        return [top]
    expired = []
    for group, names in listing.items():
        folder = f"{top}/{group}"
        if folder not in kept:
            expired.append(folder)
        else:
            paths = [f"{folder}/{name}" for name in names]
            expired += [path for path in paths if path not in kept]
    return expired


def _line(path: str) -> Iterator[str]:
    """Yield ``path`` and every folder above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
