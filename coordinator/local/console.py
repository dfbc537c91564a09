"""Print the lines of a local fleet at the terminal and keep them in a file.

A terminal may be closed, held or full at any time. The threads that keep a fleet alive print through this module, so a
line never raises for a closed terminal and never waits long for a full one.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from unstuck.coordinator.local.log_rotation import LOG_LIMIT, rotate

WRITE_TIMEOUT = 1.0  # seconds that one line waits for a full terminal


class Console:
    """Prints a line at the terminal and, while ``keeps`` is true, appends it with its time to a file. Never raises.

    Args:
        log: the file; its folder is made if it is missing.
        say: takes a line for the terminal.
        limit: bytes of the file; see ``log_rotation.rotate``.
    """

    def __init__(self, log: Path, say: Callable[[str], None], limit: int = LOG_LIMIT) -> None:
        self.log, self._say, self._limit = log, say, limit
        self.keeps = False  # until the home is locked: a refused fleet must not write to the log of the running one
        self._mutex = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._mutex:
            # Separately: a full disk must not silence the terminal, nor a closed terminal the file.
            if self.keeps:
                with suppress(OSError):
                    self._write(line)
            # A closed file object raises ValueError.
            with suppress(OSError, ValueError):
                self._say(line)

    def _write(self, line: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(self.log, self._limit)
        with self.log.open("a", encoding="utf-8", errors="replace") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")


def to_stdout(line: str) -> None:
    """Write to standard output; drop a line that standard output does not accept within ``WRITE_TIMEOUT`` seconds.

    Raises:
        OSError, ValueError: the line could not be written.
    """
    out = sys.stdout
    try:
        number = out.fileno()
    except OSError:  # no file of the system, as under a test that captures
        out.write(line + "\n")
        return
    # A terminal held with ^S, or a pager at the other end of a full pipe, would block the caller for ever.
    if not select.select([], [number], [], WRITE_TIMEOUT)[1]:
        return
    try:
        out.write(line + "\n")
        out.flush()
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):
            # The terminal will not come back. Without this, the flush at exit would fail on the line once more, and an
            # ordered stop would end with the exit code of a failure.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
        raise
