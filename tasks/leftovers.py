"""What an attempt may leave behind in its process: threads, children, another working directory.

None of it can be taken away safely, so a process that has some is replaced. Daemon threads are let be: libraries
keep them for good, and they do not keep the process alive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The process as it was before an attempt."""

    threads: frozenset[int]
    children: frozenset[psutil.Process]
    folder: str

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            frozenset(thread.ident or 0 for thread in threading.enumerate()),
            frozenset(psutil.Process().children()),
            os.getcwd(),
        )

    def left_behind(self, known: Collection[int]) -> list[str]:
        """What is there now and was not, in words. ``known``: pids of children that are the runner's own.

        Goes back to the old working directory, so that what follows finds its files.
        """
        left = []
        for thread in threading.enumerate():
            if thread.ident not in self.threads and not thread.daemon and thread.is_alive():
                left.append(f"the thread {thread.name!r}")
        for child in set(psutil.Process().children()) - self.children:
            if child.pid not in known and child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                left.append(f"the process {child.pid}")
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = "a folder that is gone"
        if folder != self.folder:
            left.append(f"the working directory {folder}")
            os.chdir(self.folder)
        return left
