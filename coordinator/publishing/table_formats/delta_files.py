"""The files of a Delta table: copies staged files below it, and syncs its commits to disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any
from urllib.parse import quote, unquote

from unstuck.coordinator.publishing.table_formats.local_files import place_file, sync
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.tasks.warehouse.object_store import ObjectStore

_OURS = (
    "unstuck-",
    ".unstuck-",
)  # how the names of our files begin, and those of files that become ours
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


class DeltaFiles:
    """The files below the table at ``path``: an absolute path, or a URI of an object store."""

    def __init__(self, path: str) -> None:
        self._root = path
        self._store = ObjectStore(path) if "://" in path else None

    def has_strangers(self) -> bool:
        """Return whether the folder has files of others.

        Our own may exist before the table does.
        """
        if os.path.isfile(self._root):
            return True
        paths = self._walk() if self._store is None else self._store.paths()
        return any(
            not path.startswith("_delta_log/") and not _name(path).startswith(_OURS)
            for path in paths
        )

    def _walk(self) -> Iterator[str]:
        def stop(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        for folder, _, names in os.walk(self._root, onerror=stop):
            yield from (os.path.relpath(os.path.join(folder, name), self._root) for name in names)

    def probe(self) -> None:
        """Create the folder of the table and a temporary file in it.

        An object store is probed once per process.

        Raises:
            OSError: nothing can be written.
            WarehouseUnsafe: two writers of one version would both succeed.
        """
        if self._store is not None:
            _try_store(self._root, self._store.address)
        else:
            os.makedirs(self._root, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._root, prefix=_OURS[1]):
                pass

    def path_of(self, file: DataFile) -> str:
        """Return the path of a staged file below the table, whichever job publishes it."""
        digest = hashlib.sha256(file.path.encode()).hexdigest()[:32]
        return f"{_folders(file.partition)}unstuck-{digest}.parquet"

    def add(self, files: Files, file: DataFile, path: str) -> Any:
        """Copy a staged file below the table, and sync it. Returns the action. Raises: OSError."""
        from deltalake.transaction import AddAction

        if self._store is not None:
            if self._store.size(path) != file.bytes:
                self._store.put(path, files.read(file.path))
        else:
            place_file(files, file.path, f"{self._root}/{path}")
            for folder in accumulate(path.split("/")[:-1], lambda above, name: f"{above}/{name}"):
                sync(f"{self._root}/{folder}")
        files.answered()
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(
            path, file.bytes, dict(file.partition), int(time.time() * 1000), True, stats
        )

    def sync_folder(self) -> None:
        """Sync the names of added files to disk. Raises: OSError."""
        if self._store is None and os.path.isdir(self._root):
            sync(self._root)
            sync(os.path.dirname(self._root))

    def sync_commit(self, version: int, app: str) -> None:
        """Sync the newest commit of ``app`` to disk, with its files, since deltalake does not.

        Raises: OSError.
        """
        if self._store is not None:
            return
        log = f"{self._root}/_delta_log"
        for n in range(version, -1, -1):
            path = f"{log}/{n:020d}.json"
            try:
                with open(path, "rb") as file:
                    actions = [json.loads(line) for line in file if line.strip()]
            except FileNotFoundError:
                break  # a checkpoint has replaced older commits
            if any(action.get("txn", {}).get("appId") == app for action in actions):
                for action in actions:
                    if (added := action.get("add")) is not None:
                        sync(f"{self._root}/{unquote(added['path'])}")
                sync(path)
                break
        sync(log)


@lru_cache
def _try_store(root: str, address: str) -> None:
    Files(root).try_place()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folders(partition: Mapping[str, str | None]) -> str:
    """Return the folders of a partition as Hive names them.

    Polars needs them if any file of a table is in some.
    """
    return "".join(
        f"{quote(key, safe='')}={NULL_FOLDER if v is None else quote(v, safe='')}/"
        for key, v in partition.items()
    )


def folder_fits(value: str) -> bool:
    """Return whether the value of a partition can be the name of a folder."""
    return len(quote(value, safe="")) <= 120
