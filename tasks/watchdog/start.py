"""Start a watchdog: as a fork of a process with one thread, otherwise as a new Python.

A fork shares the modules that this process has imported, which makes it cheap
(docs/decisions/0014).
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from unstuck.tasks.watchdog.watchdog import run

COMMAND = b"unstuck.tasks.watchdog"
# Of /proc/self/stat, from after the name on: where the command line begins and ends in memory.
_ARGUMENTS = 45


class ForkedWatchdog:
    """A forked watchdog, with the interface of `subprocess.Popen`. ``stdout``: its instructions."""

    def __init__(self, pid: int, stdout: BinaryIO) -> None:
        self.pid, self.stdout = pid, stdout

    def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else has waited for it
            return 0

    def kill(self) -> None:
        """Only before `wait` has returned: afterwards its pid may be another's."""
        os.kill(self.pid, signal.SIGKILL)


WatchdogProcess = ForkedWatchdog | subprocess.Popen[bytes]


def start_watchdog(hello: dict[str, Any], inherited: Sequence[int]) -> WatchdogProcess:
    """Start a watchdog with ``hello``. It keeps only the ``inherited`` descriptors.

    Raises:
        OSError: no process or no descriptor is left, for example.
    """
    # A fork copies locks that other threads hold, and they stay locked for ever.
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:
        return _forked(hello, inherited)
    return subprocess.Popen(
        [sys.executable, "-m", COMMAND.decode(), json.dumps(hello)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a signal to the runner's group or terminal must not reach it
        bufsize=0,
        pass_fds=inherited,
    )


def _forked(hello: dict[str, Any], inherited: Sequence[int]) -> ForkedWatchdog:
    instructions, its_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(instructions)
        raise
    else:
        if pid == 0:
            _become_watchdog(hello, its_end, inherited)
    finally:
        os.close(its_end)
    # Wait until it has left this process group, or has ended: this runner may kill its group.
    os.read(instructions, 1)
    return ForkedWatchdog(pid, open(instructions, "rb", buffering=0))


def _become_watchdog(
    hello: dict[str, Any], instructions: int, inherited: Sequence[int]
) -> NoReturn:
    """Be as a new Python would be, as far as a watchdog uses it.

    The frames of the runner are never returned to.
    """
    code = os.EX_SOFTWARE
    try:
        os.setsid()
        os.write(instructions, b"\n")
        gc.freeze()  # a collection would write to every page that is shared
        _forget_signals()
        _forget_logging()
        _rename()
        _leave_descriptors(instructions, inherited)
        run(hello)
        code = os.EX_OK
    except BaseException:  # noqa: BLE001 - it must not reach the runner's frames
        traceback.print_exc()
    finally:
        os._exit(code)
    raise AssertionError("a process outlives its exit")


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):  # neither default nor ignored, as after an exec
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _forget_logging() -> None:
    """Remove the handlers of the worker and the user, which may hang or lose their descriptors."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    for logger in logging.root, *logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers, logger.filters, logger.propagate = [], [], True
            logger.setLevel(logging.NOTSET)


def _rename() -> None:
    """Show this process as a watchdog (`is_watchdog`), not as the worker that forked it."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[_ARGUMENTS]), int(fields[_ARGUMENTS + 1])
    ctypes.memmove(begin, COMMAND[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def _leave_descriptors(instructions: int, inherited: Sequence[int]) -> None:
    """Keep standard error and ``inherited``, and write instructions to standard output."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(instructions, 1)
    # Not closed: an object of the runner that is freed here would close what has got its number
    # since.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in (0, 1, 2, nothing, *inherited):
            os.dup2(nothing, descriptor)
