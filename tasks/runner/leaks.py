"""Check what an attempt left in its process: threads and open files.

Neither can be taken away safely, so the process is replaced. Daemon threads are ignored, because libraries keep them
for good.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import threading


class LeakCheck:
    """Compares this process with what it was when the check was made."""

    def __init__(self) -> None:
        self._threads = {thread.ident for thread in threading.enumerate()}

    def found(self) -> list[str]:
        """What was left since then, in words."""
        left = []
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = math.inf if limit == resource.RLIM_INFINITY else limit
        held = _open_files(most)
        if held > most / 2:
            # The next attempt might leave too few descriptors to look for leaks, or to start a watchdog.
            left.append(f"{held} open files, of {most} that it may have")
        for thread in threading.enumerate():
            if thread.ident not in self._threads and not thread.daemon and thread.is_alive():
                left.append(f"the thread {thread.name!r}")
        return left


def _open_files(most: float) -> float:
    """How many descriptors are open; ``most`` where none is left to count them with."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return most
        return 0  # a system without that folder
