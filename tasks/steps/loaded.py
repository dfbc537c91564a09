"""The code of users that this process has loaded, compared with the files that it came from.

A runner whose code is older than the files is replaced before it takes work. What it has from the
main process of its worker is imported anew (docs/decisions/0019).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress

from unstuck.tasks.identity import LIBRARIES

log = logging.getLogger(__name__)

# Size, mtime and ctime: an unpacked or copied file may keep its mtime.
_Stamp = tuple[int, int, int]

_WITHIN = 0.02  # seconds that one comparison may take; the next one goes on where it ended
_TICK = 20_000_000  # nanoseconds by which the clock of a file may be behind that of a process
_OURS = ("unstuck", "__main__", "__mp_main__")  # only a restart changes these


class LoadedCode:
    """The modules of this process.

    Watched are those outside of the libraries, and all of the packages of steps.
    """

    def __init__(self) -> None:
        # The file of each module when it was loaded.
        self._known: dict[str, tuple[str, _Stamp | None]] = {}
        self._watched: deque[str] = deque()
        self._packages: set[str] = set()
        self._modules = 0  # that there were at the last look
        self._looked = 0  # nanoseconds since the epoch

    def look(self) -> None:
        """Record the files of modules that were imported since the last call."""
        began = time.time_ns()
        if len(sys.modules) != self._modules:
            for name, module in list(sys.modules.items()):
                if name in self._known or (path := _file_of(module)) is None:
                    continue
                self._known[name] = (path, stamp := _stamp(path))
                if name.partition(".")[0] in self._packages or _is_users(name, path):
                    self._watched.append(name)
                    if self._looked and stamp is not None and stamp[2] >= self._looked - _TICK:
                        # The file was written after the last look: before or after the import,
                        # nobody knows.
                        self._known[name] = (path, None)
            self._modules = len(sys.modules)
        self._looked = began

    def changed(self) -> str:
        """The file of a watched module that is not as it was loaded; empty if there is none."""
        self.look()
        end = time.monotonic() + _WITHIN
        for _ in range(len(self._watched)):
            if self._differs(self._watched[0]):
                return self._known[self._watched[0]][0]
            self._watched.rotate(-1)
            if time.monotonic() > end:
                break
        return ""

    def use(self, packages: Collection[str]) -> None:
        """Steps of these packages are to run.

        Those that are new here, and older than their files, are forgotten.
        """
        if not (new := {*packages} - self._packages):
            return
        self.look()
        self._packages |= new
        theirs = [name for name in self._known if name.partition(".")[0] in new]
        self._watched += [name for name in theirs if not _is_users(name, self._known[name][0])]
        if any(map(self._differs, theirs)):
            self._forget(theirs)

    def forget_changed(self) -> None:
        """Forget all watched modules if one has changed.

        For a process that has run none of them yet.
        """
        if path := self.changed():
            log.info(
                "%s has changed since this worker loaded it; the code of users is imported anew",
                path,
            )
            self._forget(list(self._watched))

    def _differs(self, name: str) -> bool:
        path, before = self._known[name]
        now = _stamp(path)
        # A file that is gone may be one that a deploy is about to write.
        return now != before and (now is not None or _found_elsewhere(name))

    def _forget(self, names: list[str]) -> None:
        for name in names:
            sys.modules.pop(name, None)
            del self._known[name]
        self._watched = deque(name for name in self._watched if name in self._known)
        self._modules = 0
        importlib.invalidate_caches()


def _is_users(name: str, path: str) -> bool:
    """Whether the module lies outside of the libraries, and is none of ours."""
    if name.partition(".")[0] in _OURS or path.startswith(LIBRARIES):
        return False
    return not os.path.realpath(path).startswith(LIBRARIES)


def _file_of(module: object) -> str | None:
    """The file that a module came from; for one in a zip file that file."""
    # Not by attributes, which an unusual module may compute on access.
    names = getattr(module, "__dict__", {})
    path = getattr(getattr(names.get("__spec__"), "loader", None), "archive", None) or names.get(
        "__file__"
    )
    return path if isinstance(path, str) else None


def _stamp(path: str) -> _Stamp | None:
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return None


def _found_elsewhere(name: str) -> bool:
    """Whether an import would find the module in another file."""
    importlib.invalidate_caches()
    within = getattr(sys.modules.get(name.rpartition(".")[0]), "__path__", None)
    with suppress(Exception):  # a finder of the user's may raise anything
        specs = (finder.find_spec(name, within) for finder in sys.meta_path)
        return any(spec is not None and spec.has_location for spec in specs)
    return False


loaded = LoadedCode()
"""That of this process, which begins with what its parent has noted."""
