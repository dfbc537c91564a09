"""Store files that a user skipped before the first load of their stream.

The first load counts them as read.

Once a dataset holds the position of its stream, this position says which files were skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from unstuck.tasks.streams.arrived.listing import found_as
from unstuck.tasks.warehouse.files import Files

_FOLDER = "_skipped"


class Skipped(NamedTuple):
    """A skipped file: its content, and who skipped it and why."""

    path: str
    content: str
    why: str


def note_skipped(files: Files, dataset: str, file: Skipped) -> bool:
    """Store a skipped file durably for the first load of ``dataset``. Idempotent.

    Returns False if it was stored before.

    Raises: OSError.
    """
    if any(earlier[:2] == file[:2] for earlier in _noted(files, [dataset])):
        return False
    name = sha256(file.path.encode()).hexdigest()[:16]
    files.write_durable(f"{_FOLDER}/{dataset}/{name}.json", json.dumps(file).encode())
    return True


def skipped(files: Files, datasets: Iterable[str]) -> list[Skipped]:
    """Return the skipped files of ``datasets`` whose content has not changed since.

    Raises: SourceUnavailable, OSError.
    """
    return [file for file in _noted(files, datasets) if _is_unchanged(file)]


def _is_unchanged(file: Skipped) -> bool:
    try:
        return found_as(file.path) == file.content
    except (FileNotFoundError, NotADirectoryError):
        return False


def _noted(files: Files, datasets: Iterable[str]) -> list[Skipped]:
    folders = [f"{_FOLDER}/{dataset}" for dataset in datasets]
    return [
        Skipped(*json.loads(files.read(f"{folder}/{name}")))
        for folder in folders
        for name in files.names(folder)
        if name.endswith(".json")
    ]
