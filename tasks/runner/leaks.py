"""What an attempt may leave behind in its process: threads, open files.

None of it can be taken away safely, so a process that has some is replaced. Daemon threads are let be: libraries
keep them for good, and they do not keep the process alive. Child processes: see ``tasks.runner.runner``.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The process as it was before an attempt."""

    threads: frozenset[int]

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            frozenset(thread.ident or 0 for thread in threading.enumerate()),
        )

    def left_behind(self) -> list[str]:
        """What is there now and was not, in words."""
        left = []
        most = _open_files_allowed()
        held = _open_files(most)
        if held > most / 2:
            # Sooner or later it could not even look for what the next attempt leaves, nor start a watchdog.
            left.append(f"{held} open files, of {most} that it may have")
        for thread in threading.enumerate():
            if thread.ident not in self.threads and not thread.daemon and thread.is_alive():
                left.append(f"the thread {thread.name!r}")
        return left


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
