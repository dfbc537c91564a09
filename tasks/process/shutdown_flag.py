"""The shutdown flag: a pipe that tells the watchdogs of a worker that the worker was told to stop.

The main process creates the pipe before it forks runners. The level is the number of bytes in the
pipe, which nobody ever reads, so that every watchdog sees them.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from enum import IntEnum


class ShutdownLevel(IntEnum):
    """The level of shutdown that a worker was told. The number is that of the bytes in the pipe."""

    WORK = 0
    STOP = 1  # what runs has UNSTUCK_DRAIN_GRACE to end by itself
    STOP_NOW = 2  # what runs is handed back at once


class ShutdownFlag:
    """The shutdown level of a worker, kept in a pipe. The worker raises it; a watchdog reads it."""

    def __init__(self, read_fd: int, write_fd: int | None = None) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd

    @classmethod
    def create(cls) -> ShutdownFlag:
        """A new flag at the level WORK. The children of this process inherit it."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def fileno(self) -> int:
        """Return a descriptor that is readable once the flag is raised or all its writers are dead.

        Check ``level`` then.
        """
        return self.read_fd

    @property
    def level(self) -> ShutdownLevel:
        # Not by whether it can be read: a pipe whose writers have died can be, too.
        size = array.array("i", [0])
        fcntl.ioctl(self.read_fd, termios.FIONREAD, size, True)
        return ShutdownLevel(min(size[0], ShutdownLevel.STOP_NOW))

    def raise_to(self, level: ShutdownLevel) -> None:
        """Raise the flag to ``level``; it never goes down.

        A signal handler may call this, because a write to a pipe needs no lock, no thread and no
        Redis.
        """
        assert self._write_fd is not None, "only the worker itself raises its flag"
        while self.level < level:
            os.write(self._write_fd, b"!")
