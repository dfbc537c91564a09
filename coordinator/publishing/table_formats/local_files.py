"""Puts staged files into local folders of tables, and syncs them to disk."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from unstuck.tasks.warehouse.files import Files

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def place_file(files: Files, staged: str, target: str) -> None:
    """Create a hard link to a staged file, or copy it. The file appears atomically.

    Raises: OSError.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    local = files.local_path(staged)
    if local is None:
        _write(Path(target), lambda temp: temp.write_bytes(files.read(staged)))
    else:
        _link(local, Path(target))


def _link(staged: Path, target: Path) -> None:
    """Link a file under a second name, or copy it to another file system."""
    try:
        os.link(staged, target)
        return
    except FileExistsError:
        return  # the name belongs to this staged file alone, and the file appeared whole
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    _write(target, lambda temp: shutil.copyfile(staged, temp))


def _write(target: Path, fill: Callable[[Path], object]) -> None:
    """Write a file that appears under its name once it is complete and on disk."""
    temp = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        fill(temp)
        sync(temp)
        os.replace(temp, target)
    finally:
        temp.unlink(missing_ok=True)


def sync(path: str | Path) -> None:
    """Sync a file or a folder to disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
