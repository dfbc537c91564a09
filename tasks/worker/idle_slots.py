"""Seats: which runners of a worker wait for work, by their own word.

Celery counts a runner as busy until its main loop has read the result. A loop that hangs never reads it, and the
worker would look busy for ever. So each child notes in memory that it shares with its main process whether it waits
for a job; no pipe, lock or loop lies between, and whoever reads it needs none.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import psutil

from unstuck.tasks.process.tree import Seen, look

MOST = 4096  # children of one worker; those beyond are not counted as waiting
_WIDTH = 8  # bytes


class Seats:
    """One number a child: its pid while it waits, that pid negated while it is at work, 0 where nobody sat yet."""

    def __init__(self, children: Callable[[], list[psutil.Process]] | None = None) -> None:
        """``children``: of the main process, which makes the seats before it forks; given in tests."""
        self._children = children or psutil.Process().children
        self._pids = memoryview(mmap.mmap(-1, MOST * _WIDTH)).cast("q")

    def wait(self, seat: int, pid: int) -> None:
        """The child ``pid`` waits for a job. Called in the child, as is ``work``."""
        if seat < MOST:
            self._pids[seat] = pid

    def work(self, seat: int, pid: int) -> None:
        """It has got one."""
        if seat < MOST:
            self._pids[seat] = -pid

    @property
    def free(self) -> bool:
        """A child waits, or there is none at all that could be at work. One that still starts up counts as at work.

        One that waits and is stopped is not free: the job that it does not read is in its pipe. False, too, where they
        cannot be looked at, for want of a descriptor say; that may end.
        """
        try:
            seen = {child.pid: look(child) for child in self._children()}
        except (OSError, psutil.Error):
            return False
        waiting = any(seen.get(pid) is Seen.ALIVE for pid in self._pids if pid > 0)
        return waiting or all(one is Seen.GONE for one in seen.values())
