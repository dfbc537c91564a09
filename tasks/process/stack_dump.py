"""Read the main thread's stack of another process, which faulthandler writes on a signal.

It is written although a C call holds the GIL, and no lock, memory or Python code of the process is
used. Only the main thread is told of, which the signal has interrupted: other threads may run
meanwhile, and change what would be read.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

# Real-time signals are nobody's by default; libraries begin with the first or the last.
_BELOW_LAST = 7
_READ = 1 << 18  # bytes; faulthandler writes at most 100 frames
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_THREAD = "_bootstrap"  # the outermost function of every thread but the main one


class RawFrame(NamedTuple):
    """One frame. ``line``: 0 if it is not known."""

    file: str
    line: int
    function: str


class StackDump:
    """Memory into which a process writes its stack when it is asked.

    Any process that has the descriptor may ask.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._asked = False

    @classmethod
    def install(cls) -> StackDump | None:
        """Let this process answer. Returns None if it cannot.

        It needs such signals and a free descriptor.
        """
        if sys.platform != "linux":
            return None
        with suppress(OSError, RuntimeError):
            descriptor = os.memfd_create("unstuck-stack")
            # System calls that the signal interrupts go on (SA_RESTART), or are repeated by Python.
            faulthandler.register(_signal(), file=descriptor, all_threads=False)
            return cls(descriptor)
        return None

    def ask(self, process: psutil.Process) -> None:
        """Ask ``process`` for its stack, unless an answer or a question is pending.

        It is not asked if it could not answer.
        """
        with suppress(OSError, psutil.Error):
            if not (self._asked and os.fstat(self.descriptor).st_size) and self._would_answer(
                process.pid
            ):
                os.ftruncate(self.descriptor, 0)
                os.lseek(self.descriptor, 0, os.SEEK_SET)  # the process has this position, too
                process.send_signal(_signal())
                self._asked = True

    def answer(self) -> list[RawFrame] | None:
        """Return the frames, innermost first; None if none have come yet.

        Empty if they are those of another thread.
        """
        text = os.pread(self.descriptor, _READ, 0) if self._asked else b""
        if not text.endswith(b"\n"):
            return None
        self._asked = False
        return frames_in(text)

    def _would_answer(self, pid: int) -> bool:
        """Return False if a step has changed the handler of the signal or its file.

        The signal would then kill the process, or write into a file of the step.
        """
        sets = dict(
            re.findall(r"(\w+Cgt|\w+Blk|\w+Pnd):\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        )
        caught, *against = (
            int(sets[name], 16) >> (_signal() - 1) & 1 for name in ("SigCgt", "SigBlk", "ShdPnd")
        )
        theirs, ours = os.stat(f"/proc/{pid}/fd/{self.descriptor}"), os.fstat(self.descriptor)
        return bool(caught) and not any(against) and os.path.samestat(theirs, ours)


def frames_in(text: bytes) -> list[RawFrame]:
    """Return the frames that faulthandler has written; none if they are not of a main thread."""
    frames = [
        RawFrame(_plain(file), int(line) if line.isdigit() else 0, _plain(function))
        for file, line, function in _FRAME.findall(text.decode("ascii", "replace"))
    ]
    return [] if frames and frames[-1].function == _THREAD else frames


def _signal() -> int:
    return signal.SIGRTMAX - _BELOW_LAST


def _plain(text: str) -> str:
    """``text`` as it was: faulthandler writes all characters beyond ASCII as escapes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), text)
