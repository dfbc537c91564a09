"""Removes the staging of runs whose process was killed, in the next run in the same warehouse.

Each run locks a file in the staging of its job. The kernel releases the lock when the process ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from unstuck.coordinator.publishing.staging_gc import folder_of, remove_staging
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)
_LOCK = "run.lock"  # its content is the version at which the job began


@contextmanager
def staging_of_run(warehouse: Warehouse, job: str, base: int, *, keep: bool) -> Iterator[None]:
    """Lock the staging of a job during the block, and remove it afterwards except published files.

    Args:
        keep: leave it, for good.
    """
    local = warehouse.storage.local_path(f"{folder_of(job)}/{_LOCK}")
    with nullcontext() if local is None else _locked(local, base):
        try:
            yield
        finally:
            if not keep:
                _remove(warehouse, job, base)
            elif local is not None:
                local.unlink(missing_ok=True)


def _locked(path: Path, base: int) -> AbstractContextManager[object]:
    """Return the file, which holds the lock until it is closed; None where there are no locks."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.write(str(base))
                file.flush()
                return file
        except OSError as error:
            log.info(
                "%s cannot be locked (%s): if this process is killed, the staging of its job stays",
                path,
                error,
            )
            path.unlink(missing_ok=True)
            file.close()
            return nullcontext()
        file.close()  # another run took it for a leftover before it was locked, and removed it


def remove_leftovers(warehouse: Warehouse) -> None:
    """Remove the unpublished staging of runs whose process has died. Raises nothing.

    Raises nothing.
    """
    top = warehouse.storage.local_path("_staging")
    for path in top.glob(f"*/{_LOCK}") if top is not None else ():
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(warehouse, path.parent.name, int(file.read() or 0))
        except (OSError, ValueError) as error:
            log.debug("%s belongs to an active run, or another run removes it: %s", path, error)


def _remove(warehouse: Warehouse, job: str, base: int) -> None:
    try:
        remove_staging(warehouse, job, base)
    except (OSError, UnstuckError) as error:
        log.warning(
            "the staging of job %s could not be removed; the next run tries it again: %s",
            job,
            error,
        )
