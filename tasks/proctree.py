"""A process with everything below it: seen, remembered, ended.

After a process has died its children belong to init and can no longer be found through it, and ``pyspark.daemon``
makes a process group of its own. So descendants are remembered while they can be seen, each by pid *and* start
time: a pid alone may by now be somebody else. This module must never signal its own process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable
from enum import StrEnum

import psutil


class Seen(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # SIGSTOP, or a debugger: it makes no progress and must not count as living
    GONE = "gone"


def look(process: psutil.Process) -> Seen:
    """How ``process`` is; a zombie is gone, and so is a pid that belongs to another process by now."""
    try:
        if not process.is_running():
            return Seen.GONE
        status = process.status()
    except psutil.NoSuchProcess:
        return Seen.GONE
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return Seen.GONE
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return Seen.STOPPED
    return Seen.ALIVE


class Tree:
    """``root`` and its descendants, without the process that watches (a child of the root itself)."""

    def __init__(self, root: psutil.Process) -> None:
        self.root = root
        # A runner leads a group of its own. Were it ever otherwise, its group would be its parent's, not ours to kill.
        self._leads = os.getpgid(root.pid) == root.pid
        self._known: set[psutil.Process] = set()

    def remember(self) -> None:
        """Note every descendant that can be seen now; forget those that have gone."""
        known = {process for process in self._known if look(process) is not Seen.GONE}
        for process in (self.root, *known):
            with contextlib.suppress(psutil.NoSuchProcess):
                known.update(process.children(recursive=True))
        self._known = known - {self.root, psutil.Process()}

    def living(self) -> list[psutil.Process]:
        """Everything of the tree that still lives, the root first. Call ``remember`` before."""
        return [p for p in (self.root, *self._known) if look(p) is not Seen.GONE]

    def kill(self, wait: float = 5.0) -> list[psutil.Process]:
        """SIGKILL the tree and the process groups it made, until nothing is left or ``wait`` seconds are over.

        All that can be seen is collected before the first signal: a parent that dies hides its children.
        Returns what is left.
        """
        end = time.monotonic() + wait
        while True:
            self.remember()
            left = self.living()
            # The root's group even if nothing of it is known: a child made since the last look is in there, too.
            _kill_groups(left, {p.pid for p in self._known}, self._root_group())
            if not left or time.monotonic() > end:
                return left
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()  # psutil refuses when the pid has been given to somebody else
            psutil.wait_procs(left, timeout=0.1)

    def _root_group(self) -> set[int]:
        """The group that the root leads, or led: while it has members, its number is given to nobody else."""
        somebody_else = psutil.pid_exists(self.root.pid) and not self.root.is_running()
        return {self.root.pid} if self._leads and not somebody_else else set()


def kill_below(spared: Collection[int]) -> None:
    """SIGKILL all that this process started and what that started, with the process groups they made.

    For a process that is about to end itself: it does not wait for them. ``spared``: pids that are left alone.

    Raises:
        OSError: the process table cannot be read; nothing was killed.
    """
    found = [process for process in psutil.Process().children(recursive=True) if process.pid not in spared]
    _kill_groups(found, {process.pid for process in found}, set())
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def _kill_groups(processes: Iterable[psutil.Process], leaders: set[int], always: set[int]) -> None:
    """Kill the process groups that members of the tree lead; never the group of whoever started the tree."""
    groups: set[int] = set()
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            groups.add(os.getpgid(process.pid))
    for group in ((groups & leaders) | always) - {os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def exit_status(pid: int) -> int | None:
    """The wait status of a zombie (``/proc/PID/stat``, last field); None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[-1]) if fields and fields[0] == "Z" else None


def describe_status(status: int | None) -> str:
    """``status`` of a dead process in words, to follow "the runner"."""
    if status is None:
        return "died; how is not known (its parent knows: see the worker's log)"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"was killed by signal {name}"
    return f"ended with exit code {code}"
