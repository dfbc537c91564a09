"""The messages of a local fleet, on the terminal and in a file, and the rotation of its logs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from unstuck.tasks.log_lines import LogAs, one_line
from unstuck.tasks.process.call_deadlines import NonBlockingHandler

_CHUNK = 1_000_000  # bytes


class Console:
    """Prints lines on the terminal and, while ``keeps`` is true, appends them to a file. Never
    raises.
    """

    def __init__(
        self, log: Path, say: Callable[[str], None] | None, log_as: LogAs = "text"
    ) -> None:
        self._log, self._say, self._log_as = log, say or _print, log_as
        # Until the home is locked: a refused fleet must not write to the log of the running one.
        self.keeps = False
        self._mutex = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._mutex:
            # Separately: a full disk must not silence the terminal, nor a closed terminal the file.
            if self.keeps:
                with suppress(OSError):
                    self._log.parent.mkdir(parents=True, exist_ok=True)
                    with self._log.open("a", encoding="utf-8", errors="replace") as log:
                        log.write(f"{one_line(self._log_as, 'unstuck.up', 'INFO', line)}\n")
            with suppress(OSError, ValueError):  # a closed file object raises ValueError
                self._say(line)


def _print(line: str) -> None:
    """Write to standard output. A stopped terminal is not waited for, a closed one is no error."""
    _stdout().emit(logging.makeLogRecord({"msg": line}))


@cache
def _stdout() -> NonBlockingHandler:
    return NonBlockingHandler(1)


def rotate(log: Path, limit: int) -> None:
    """If the log is larger than ``limit`` bytes, copy its newest ``limit`` bytes to NAME.1, and
    empty it.

    The process that writes to it holds it open, and appends; so the file is emptied and not
    replaced. Lines written
    between the copy and the cut are lost: some microseconds of a process that just printed
    megabytes.

    Raises:
        OSError: the log can be neither read nor cut short.
    """
    if log.stat().st_size > limit:
        older = log.with_name(log.name + ".1")
        # A full disk stops Valkey and with it every job, so the log is emptied even where it cannot
        # be copied.
        with suppress(OSError):
            older.unlink(missing_ok=True)  # first, to make room
            with log.open("rb", buffering=0) as source, older.open("wb", buffering=0) as target:
                source.seek(-limit, os.SEEK_END)
                # The copy has a limit: the process may write as fast as the copy reads.
                while target.tell() < 2 * limit and (chunk := source.read(_CHUNK)):
                    target.write(chunk)
        os.truncate(log, 0)
