"""Idle slots: each runner of a worker notes in shared memory whether it waits for a job.

Celery counts a runner as busy until its main loop has read the result, so a worker whose loop hangs
would look busy for ever.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import psutil

from unstuck.tasks.process.tree import ProcessState, process_state

MAX_CHILDREN = 4096  # of one worker


class IdleSlots:
    """One number a child: its pid while it waits for a job, else 0."""

    def __init__(self, children: Callable[[], list[psutil.Process]] | None = None) -> None:
        """Create the slots in the main process before it forks. ``children``: for tests."""
        self._children = children or psutil.Process().children
        self._pids = memoryview(mmap.mmap(-1, MAX_CHILDREN * 8)).cast("q")

    def idle(self, slot: int, pid: int) -> None:
        """Record that the child ``pid`` waits for a job. Called in the child, as is ``busy``."""
        if slot < MAX_CHILDREN:
            self._pids[slot] = pid

    def busy(self, slot: int) -> None:
        if slot < MAX_CHILDREN:
            self._pids[slot] = 0

    @property
    def available(self) -> bool:
        """Return whether a child waits, or no child is left that could be at work.

        A child that still starts is at work.

        A child that waits and is stopped is not available: the job that it does not read is in its
        pipe.
        """
        try:
            states = {child.pid: process_state(child) for child in self._children()}
        except (OSError, psutil.Error):  # for example, no file descriptor is free
            return False
        waiting = any(states.get(pid) is ProcessState.ALIVE for pid in self._pids if pid)
        return waiting or all(state is ProcessState.GONE for state in states.values())
