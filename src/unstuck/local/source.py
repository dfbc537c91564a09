"""Watches the source of steps: which Python files below some folders have changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

# Folders that hold no source of the user's, and may hold very many files. Hidden files and folders
# are left out, too.
_NO_SOURCE = frozenset({"__pycache__", "node_modules", "site-packages"})


def holds_source(folder: Path) -> bool:
    """Return whether workers that start in ``folder`` find modules or packages there."""
    return any(chain(folder.glob("*.py"), folder.glob("[!.]*/__init__.py")))


class SourceWatch:
    """The Python files below ``folders``, but not below ``without``, as of the last scan."""

    def __init__(self, folders: Iterable[str | Path], without: Iterable[str | Path] = ()) -> None:
        self.folders = [os.path.realpath(folder) for folder in folders]
        self._without = frozenset(os.path.realpath(folder) for folder in without)
        self._seen = self._scan()
        self._changing: set[str] = set()

    def changed(self) -> list[str]:
        """Return files that changed, appeared or disappeared, once a scan finds no further change.

        A scan may fall between two files that an editor or a checkout writes, so the first scan
        that finds a change returns nothing.
        """
        now = self._scan()
        fresh = {
            path for path in now.keys() | self._seen.keys() if now.get(path) != self._seen.get(path)
        }
        self._seen = now
        self._changing |= fresh
        if fresh or not self._changing:
            return []
        changed, self._changing = sorted(self._changing), set()
        return changed

    def packages_of(self, path: str) -> set[str]:
        """Return the top-level packages, or modules, that the file ``path`` may belong to."""
        below = (path.removeprefix(f"{folder}/") for folder in self.folders)
        return {
            name.partition("/")[0].removesuffix(".py") for name in below if not name.startswith("/")
        }

    def _scan(self) -> dict[str, tuple[int, int]]:
        return {
            entry.path: stamp for folder in self.folders for entry, stamp in self._sources(folder)
        }

    def _sources(self, folder: str) -> Iterator[tuple[os.DirEntry[str], tuple[int, int]]]:
        try:
            with os.scandir(folder) as entries:
                children = list(entries)
            for entry in children:
                if entry.name[0] == "." or entry.name in _NO_SOURCE or entry.path in self._without:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._sources(entry.path)
                elif entry.name.endswith(".py") and entry.is_file():
                    status = entry.stat()
                    yield entry, (status.st_mtime_ns, status.st_size)
        except OSError:
            return  # removed, or not readable: its files count as removed
