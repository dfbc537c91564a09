"""The files of a Delta table outside the warehouse: staged files are put below it, and its commits are put on disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile

_NULL = "__HIVE_DEFAULT_PARTITION__"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_COPY_BYTES = 8 * 1024 * 1024


class TableFiles:
    """The files below the table at ``path``: an absolute path, or a URI of an object store."""

    def __init__(self, path: str) -> None:
        self._fs: Any = None
        self._root = path
        if "://" in path:
            import fsspec

            self._fs, root = fsspec.core.url_to_fs(path, use_listings_cache=False)
            self._root = str(root).rstrip("/")

    def occupied(self) -> bool:
        """Whether anything stands there. Raises: OSError."""
        if self._fs is not None:
            return bool(self._fs.exists(self._root) and self._fs.ls(self._root))
        return os.path.isfile(self._root) or (os.path.isdir(self._root) and bool(os.listdir(self._root)))

    def add(self, files: Files, file: DataFile, name: str) -> Any:
        """Put a staged file below the table, whole and on disk; the action that adds it. Raises: OSError."""
        from deltalake.transaction import AddAction

        path = f"{_folders(file.partition)}{name}"
        target = f"{self._root}/{path}"
        staged = files.local_path(file.path)
        if self._fs is not None or staged is None:
            self._copy_remote(files, file, target)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _link(staged, Path(target))
            for folder in accumulate(path.split("/")[:-1], lambda above, one: f"{above}/{one}"):
                _sync(f"{self._root}/{folder}")
        files.answered()
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(path, file.bytes, dict(file.partition), int(time.time() * 1000), True, stats)

    def _copy_remote(self, files: Files, file: DataFile, target: str) -> None:
        import fsspec

        if self._fs is not None and self._fs.exists(target) and self._fs.size(target) == file.bytes:
            return
        sink = self._fs if self._fs is not None else fsspec.filesystem("file", auto_mkdir=True)
        with fsspec.open(files.uri(file.path), "rb") as source, sink.open(target, "wb") as copy:
            while block := source.read(_COPY_BYTES):
                copy.write(block)
                files.answered()
        if self._fs is None:
            _sync(target)

    def sync_folder(self) -> None:
        """The names of files that were added are on disk. Raises: OSError."""
        if self._fs is None and os.path.isdir(self._root):
            _sync(self._root)
            _sync(os.path.dirname(self._root))

    def sync_commit(self, version: int, app: str) -> None:
        """Put the newest commit of ``app`` on disk, with its files: deltalake does not. Raises: OSError."""
        if self._fs is not None:
            return
        log = f"{self._root}/_delta_log"
        for n in range(version, -1, -1):
            path = f"{log}/{n:020d}.json"
            try:
                with open(path, "rb") as file:
                    actions = [json.loads(line) for line in file if line.strip()]
            except FileNotFoundError:
                break  # a checkpoint has replaced what is older
            if any(action.get("txn", {}).get("appId") == app for action in actions):
                for action in actions:
                    if (added := action.get("add")) is not None:
                        _sync(f"{self._root}/{unquote(added['path'])}")
                _sync(path)
                break
        _sync(log)


def _folders(partition: Mapping[str, str | None]) -> str:
    """The folders of a partition as Hive names them. Polars wants them where any file of a table stands in some."""
    return "".join(
        f"{quote(key, safe='')}={_NULL if v is None else quote(v, safe='')}/" for key, v in partition.items()
    )


def folder_fits(value: str) -> bool:
    """Whether the value of a partition can be the name of a folder, with the name of its column."""
    return len(quote(value, safe="")) <= 120


def _link(staged: Path, target: Path) -> None:
    """Give a file a second name, or copy it to another file system."""
    try:
        os.link(staged, target)
        return
    except FileExistsError:
        return  # its name is of this entry alone, and it came there whole
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    temp = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        shutil.copyfile(staged, temp)
        _sync(temp)
        os.replace(temp, target)
    finally:
        temp.unlink(missing_ok=True)


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
