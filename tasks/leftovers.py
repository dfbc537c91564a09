"""What an attempt may leave behind in its process: threads, children, open files.

None of it can be taken away safely, so a process that has some is replaced. Daemon threads are let be: libraries
keep them for good, and they do not keep the process alive.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.proctree import Seen, look


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The process as it was before an attempt."""

    threads: frozenset[int]
    children: frozenset[int]

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            frozenset(thread.ident or 0 for thread in threading.enumerate()),
            frozenset(_children()),
        )

    def left_behind(self, known: Collection[int]) -> list[str]:
        """What is there now and was not, in words. ``known``: pids of children that are the runner's own."""
        left = []
        most = _open_files_allowed()
        held = _open_files(most)
        if held > most / 2:
            # Sooner or later it could not even look for what the next attempt leaves, nor start a watchdog.
            left.append(f"{held} open files, of {most} that it may have")
        for thread in threading.enumerate():
            if thread.ident not in self.threads and not thread.daemon and thread.is_alive():
                left.append(f"the thread {thread.name!r}")
        there = _children() if held < most else frozenset()  # to look takes a descriptor
        for pid in sorted(there - self.children - set(known)):
            if _lives(pid):
                left.append(f"the process {pid}")
        return left


def working_folder() -> str | None:
    """The working directory of this process; None if it is gone. A deploy that replaces it leaves workers without."""
    try:
        return os.getcwd()
    except OSError:  # removed; or on a mount whose server has replaced it (ESTALE) or is away
        return None


def _open_files_allowed() -> float:
    """``ulimit -n``."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if most == resource.RLIM_INFINITY else most


def _open_files(most: float) -> float:
    """Descriptors that are open; ``most`` where none is left to count them with."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return most
        return 0  # a system without that folder


def _children() -> set[int]:
    """The pids of this process's children. Asks the kernel for them: psutil reads every process there is."""
    try:
        lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        lists = []
    if not lists:  # no Linux, or a kernel without these files
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for text in lists for pid in text.split()}


def _lives(pid: int) -> bool:
    try:
        return look(psutil.Process(pid)) is not Seen.GONE
    except psutil.NoSuchProcess:
        return False
