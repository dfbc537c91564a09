"""End every process that a test process left behind, however the test process ended.

``python reaper.py PID NAME VALUE``: waits until the process PID has ended, then kills each process
that was started with NAME=VALUE in its environment, and all below it. The environment passes
through sessions, process groups and double forks.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

import psutil

WITHIN = 30.0  # seconds; what cannot be killed by then is left


def await_end(pid: int) -> None:
    """Return once the process has ended."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([end], [], [])


def left_behind(name: str, value: str) -> list[psutil.Process]:
    """The processes that carry the mark, with their descendants: a program may overwrite its own
    environment.
    """
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(name) == value:
                found |= {process, *process.children(recursive=True)}
    return [process for process in found if process.pid != os.getpid()]


def reap(name: str, value: str) -> None:
    """Kill, and look again, until nothing is left: a process may fork before it is killed."""
    deadline = time.monotonic() + WITHIN
    while (left := left_behind(name, value)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.1)


if __name__ == "__main__":
    await_end(int(sys.argv[1]))
    reap(*sys.argv[2:])
