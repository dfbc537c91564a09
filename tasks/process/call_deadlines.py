"""Run calls that may hang in daemon threads, and abandon them after a deadline.

A log may hang as well: the log of an attempt lies in the warehouse, whose server may be gone.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

LOG_TIMEOUT = 1.0  # seconds that a line in a log may take
MAX_WAITING = 1000  # lines that wait to be written


def call_in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Run ``call`` in a thread that keeps no process alive. A caller may stop waiting for it.

    Raises:
        RuntimeError: no thread can be started.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_with_deadline(
    call: Callable[..., object], *arguments: object, seconds: float = LOG_TIMEOUT
) -> bool:
    """Call ``call(*arguments)``. Returns False if it has not ended after ``seconds``.

    What it raises is printed. Where no thread can be started, it is called here, without a
    deadline.
    """

    def run() -> None:
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - the caller goes on, whatever became of a line in a log
            traceback.print_exc()

    try:
        future = call_in_thread(run, "deadline")
    except RuntimeError:
        run()
        return True
    wait([future], seconds)
    return future.done()


class NonBlockingHandler(logging.Handler):
    """Writes log lines to a descriptor in a thread, for a process that must never wait for a log.

    While ``MAX_WAITING`` lines wait, further lines are dropped.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(MAX_WAITING)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Number of lines that are not written yet."""
        return self._lines.unfinished_tasks

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - a line that cannot be formatted stops nobody
            line = (
                f"{record.pathname}:{record.lineno}: {record.msg!r} cannot be written: "
                f"{type(error).__name__}"
            )
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    def flush(self) -> None:
        """Wait until all lines are written, for ``LOG_TIMEOUT`` at most. Called at exit, too."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self.waiting, LOG_TIMEOUT)

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
