"""Writing what is for people, where it may hang: no deed and no outcome waits for it.

The log of an attempt lies in the warehouse, and its handler is on the root logger. On a mount whose server is gone any
line of this process may so wait for good. Nothing must be done in here but writing.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

WITHIN = 1.0  # seconds
MOST = 1000  # lines that may wait to be written


def aside(write: Callable[[], object], within: float = WITHIN) -> bool:
    """Do ``write`` in a thread of its own; False if that has not ended after ``within`` seconds and was left to itself.

    Where no thread is left to be had, it is done here, and waited for.
    """
    writing = threading.Thread(target=write, name="aside", daemon=True)
    try:
        writing.start()
    except RuntimeError:
        write()
        return True
    writing.join(within)
    return not writing.is_alive()


class AsideHandler(logging.Handler):
    """Writes log lines to a descriptor, in the order in which they came, in a thread of its own.

    For a process that may wait for no line at all. What comes while more than a thousand lines wait is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(MOST)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - whatever is to be said, who says it goes on
            line = f"{record.pathname}:{record.lineno}: {record.msg!r} cannot be written: {type(error).__name__}"
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    def flush(self) -> None:
        """Wait until all is written, a moment at most. Called at exit, too."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, WITHIN)

    def _write(self) -> None:
        while True:
            line = self._lines.get().encode(errors="replace") + b"\n"
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                line = b""  # nobody reads it any more, and nobody else can be told
            finally:
                self._lines.task_done()
