"""Process trees: find, remember and kill a process with all its descendants.

A daemon leaves its parent and its process group. Runners and the main process of a worker therefore
adopt orphans (Linux: *child subreaper*), and a watchdog remembers each descendant by pid and start
time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_PF_EXITING = 0x4  # <linux/sched.h>, of the flags in /proc/PID/stat


class ProcessState(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # SIGSTOP, or a debugger: it makes no progress and must not count as alive
    GONE = "gone"


def process_state(process: psutil.Process) -> ProcessState:
    """The state of ``process``.

    A zombie is gone, and so is a process whose pid another process has now.
    """
    try:
        if not process.is_running():
            return ProcessState.GONE
        status = process.status()
    except psutil.NoSuchProcess:
        return ProcessState.GONE
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState.GONE
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return ProcessState.STOPPED
    return ProcessState.ALIVE


class Tree:
    """``root`` and its descendants, without this process and pids that ``spare`` accepts."""

    def __init__(
        self, root: psutil.Process, spare: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.root = root
        self._spare = spare
        self._known: set[psutil.Process] = set()

    def remember(self) -> None:
        """Note every descendant that can be seen now; forget those that are gone."""
        processes = {
            process for process in self._known if process_state(process) is not ProcessState.GONE
        }
        for process in (self.root, *processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.update(process.children(recursive=True))
        self._known = {
            p for p in processes - {self.root, psutil.Process()} if not self._spare(p.pid)
        }

    def living(self) -> list[psutil.Process]:
        """All processes of the tree that still live, the root first. Call ``remember`` before."""
        return [p for p in (self.root, *self._known) if process_state(p) is not ProcessState.GONE]

    def kill(self, wait: float = 5.0) -> list[psutil.Process]:
        """Kill the tree and its process groups, until nothing is left or ``wait`` seconds are over.

        All descendants are collected before the first signal, because a parent that dies hides its
        children. Returns the processes that are left.
        """
        end = time.monotonic() + wait
        while True:
            self.remember()
            left = self.living()
            # Otherwise the pid may belong to another process by now.
            if self.root.is_running() or not psutil.pid_exists(self.root.pid):
                # Also of a dead root: its group has children that were created since the last look.
                _kill_group(self.root.pid)
            if not left or time.monotonic() > end:
                return left
            for process in left:
                _kill_group(process.pid)
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()  # psutil refuses when the pid has been given to somebody else
            # Not psutil.wait_procs(): where a process was just reaped, older kernels make it fail
            # (psutil issue 2715).
            time.sleep(0.02)


def _kill_group(leader: int) -> None:
    """Kill the process group that ``leader`` created, but never the group of this process."""
    if leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants (Linux). Children do not inherit this.

    Raises:
        OSError: the kernel refuses.
    """
    if sys.platform != "linux":
        return
    if (
        ctypes.CDLL(None, use_errno=True).prctl(
            _PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))
        )
        != 0
    ):
        raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")


def is_watchdog(pid: int) -> bool:
    """True for a living watchdog. A zombie has no command line."""
    try:
        return b"unstuck.tasks.watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def end_strays(own: Callable[[int], bool], wait: float = 5.0) -> list[int]:
    """Kill children that are not its own, until none is left or ``wait`` seconds are over.

    For a process that adopts orphans: what a killed child leaves becomes a child too, and is killed
    next. Dead children are reaped. ``own`` is called after the children were listed, so it knows a
    child that was just started.

    Returns:
        The pids of the children that lived, without those that were about to end by themselves.

    Raises:
        OSError: the children cannot be listed, because no descriptor is free, for example.
    """
    end = time.monotonic() + wait
    lived: set[int] = set()
    while True:
        living = {pid for pid in children() if not own(pid) and not _reaped(pid)}
        for pid in living:
            if not _ends(pid):
                lived.add(pid)
            _kill_group(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not living or time.monotonic() >= end:
            return sorted(lived)
        time.sleep(0.005)


def children() -> set[int]:
    """Return the pids of this process's children from the kernel's list.

    psutil would read every process of the host.
    """
    lists = []
    with contextlib.suppress(FileNotFoundError):  # a system without /proc
        for thread in os.listdir("/proc/self/task"):
            with (
                # The thread may have ended meanwhile.
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file,
            ):
                lists.append(file.read())
    if not lists:  # a kernel without these files
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for text in lists for pid in text.split()}


def _reaped(pid: int) -> bool:
    """True once the child ``pid`` is dead and reaped, by anybody."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _ends(pid: int) -> bool:
    """Return whether the kernel is ending a process: it has no command line any more."""
    fields = _stat(pid)
    return bool(fields) and bool(int(fields[6]) & _PF_EXITING)


def exit_status(pid: int) -> int | None:
    """Return the wait status of a zombie (``/proc/PID/stat``); None where the system has none."""
    fields = _stat(pid)
    return int(fields[-1]) if fields and fields[0] == "Z" else None


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; none where there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe_status(status: int | None) -> str:
    """``status`` of a dead process in words that follow "the runner"."""
    if status is None:
        return "died; how is not known (its parent knows: see the worker's log)"
    return describe_exit(os.waitstatus_to_exitcode(status))


def describe_exit(code: int) -> str:
    """The exit code of a process in words; a negative one is the signal that killed it."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"was killed by signal {name}"
    return f"ended with exit code {code}"


def working_folder() -> str | None:
    """Return the working directory; None if it is gone, as after a deploy that replaced it."""
    try:
        return os.getcwd()
    except OSError:  # removed; or on a mount whose server has replaced it (ESTALE) or is away
        return None
