"""Idle slots: each runner of a worker notes in shared memory whether it waits for a job.

Celery counts a runner as busy until its main loop has read the result, so a worker whose loop hangs would look busy for
ever.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import psutil

from unstuck.tasks.process.tree import Seen, look

MAX_SLOTS = 4096  # children of one worker; those beyond are not counted as waiting
_WIDTH = 8  # bytes


class IdleSlots:
    """One number a child: its pid while it waits, that pid negated while it is at work, 0 where no child was yet."""

    def __init__(self, children: Callable[[], list[psutil.Process]] | None = None) -> None:
        """``children``: of the main process, which makes the slots before it forks; given in tests."""
        self._children = children or psutil.Process().children
        self._pids = memoryview(mmap.mmap(-1, MAX_SLOTS * _WIDTH)).cast("q")

    def idle(self, slot: int, pid: int) -> None:
        """The child ``pid`` waits for a job. Called in the child, as is ``busy``."""
        if slot < MAX_SLOTS:
            self._pids[slot] = pid

    def busy(self, slot: int, pid: int) -> None:
        """The child ``pid`` has got one."""
        if slot < MAX_SLOTS:
            self._pids[slot] = -pid

    @property
    def available(self) -> bool:
        """A child waits, or there is none at all that could be at work. One that still starts up counts as at work.

        One that waits and is stopped is not available: the job that it does not read is in its pipe. False, too, where
        they cannot be looked at, for example because no file descriptor is free.
        """
        try:
            seen = {child.pid: look(child) for child in self._children()}
        except (OSError, psutil.Error):
            return False
        waiting = any(seen.get(pid) is Seen.ALIVE for pid in self._pids if pid > 0)
        return waiting or all(one is Seen.GONE for one in seen.values())
