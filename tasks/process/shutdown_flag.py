"""The stop sign: how the watchdogs of a worker learn that it was told to stop, whatever else it hangs in by then.

Celery signals its main process alone, and that process may hang in its own stop. So the word goes through a pipe that
is made before the runners are forked, and that nobody ever reads: whoever holds the other end sees how many bytes are
in it. Writing needs no lock, no Redis and no thread, so a signal handler may do it. It must never be read from:
the word is for every runner, and for each watchdog that takes over.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from enum import IntEnum


class Word(IntEnum):
    """What a worker was told. The number is that of the bytes in the pipe."""

    WORK = 0
    STOP = 1  # what runs has UNSTUCK_DRAIN_GRACE to end by itself
    STOP_NOW = 2  # what runs is handed back at once


class StopSign:
    """One end of the pipe: the worker's own, which can raise the sign, or a watchdog's, which can only look."""

    def __init__(self, looking: int, raising: int | None = None) -> None:
        """``looking``, ``raising``: descriptors of the two ends of the pipe."""
        self.looking = looking
        self._raising = raising

    @classmethod
    def make(cls) -> StopSign:
        """A new sign, not raised; children of this process have it too."""
        looking, raising = os.pipe()
        os.set_blocking(raising, False)
        return cls(looking, raising)

    def fileno(self) -> int:
        """Readable once the sign is raised; and when everybody who could raise it has died, so ask ``word`` then."""
        return self.looking

    @property
    def word(self) -> Word:
        """What was said so far."""
        # Not by whether it can be read: a pipe whose writers have died can be, too.
        size = array.array("i", [0])
        fcntl.ioctl(self.looking, termios.FIONREAD, size, True)
        return Word(min(size[0], Word.STOP_NOW))

    def say(self, word: Word) -> None:
        """Raise the sign to ``word``, if it is not that high; it never goes down. Fit for a signal handler."""
        assert self._raising is not None, "only the worker itself raises its sign"
        while self.word < word:
            os.write(self._raising, b"!")
