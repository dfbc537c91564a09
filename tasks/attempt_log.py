"""The log of one attempt: a file beside its staging folder, as ``unstuck logs`` shows it.

It holds what the attempt's code logged and printed, and full tracebacks; one line a record, UTC, flushed at once
so that it can be followed. It is for people alone: nothing is ever decided from it, a log that cannot be written
never fails an attempt, and a secret that was resolved for the attempt never reaches it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from tasks.errors import WarehouseMismatch
from tasks.filesystem import Files

MAX_BYTES = 32 * 1024 * 1024
_QUIET = ("py4j", "celery.utils", "kombu", "amqp")


class _Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _Bounded(logging.Handler):
    """Writes to a file until ``MAX_BYTES``; says so once, and then no more."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._file = path.open("a", encoding="utf-8", errors="replace")
        self._left = MAX_BYTES - path.stat().st_size
        self.setFormatter(_Line())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
            if self._left <= 0:
                return
            self._left -= len(text)
            if self._left <= 0:
                text = f"… this log is cut here: it has reached {MAX_BYTES // 2**20} MiB\n"
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError, TypeError) as error:
            # Not through handleError: it prints to sys.stderr, which leads back here.
            self._left = 0
            print(f"the log {self.path} cannot be written any more: {error!r}", file=sys.__stderr__)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Tee(io.TextIOBase):
    """What a step prints: to the worker's own stream as ever, and line by line into the log."""

    def __init__(self, stream: TextIO, logger: logging.Logger, clean: Callable[[str], str]) -> None:
        self._stream = stream
        self._logger = logger
        self._clean = clean
        self._rest = ""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._stream.write(self._clean(text))
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._logger.info("%s", line)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        if self._rest:
            self._logger.info("%s", self._rest)
            self._rest = ""


class AttemptLog:
    """The open log of the attempt this process runs.

    Attributes:
        path: the file on this machine, for the watchdog to write its last words into; None on an object store.
        logger: what steps know as ``ctx.log``.
    """

    def __init__(self, files: Files, staging: str) -> None:
        self._files = files
        self._name = f"{staging}.log"
        self.path = files.local_path(self._name)
        self.logger = logging.getLogger("step")
        self._clean: Callable[[str], str] = lambda text: text
        self._handler: logging.Handler | None = None

    def hide(self, clean: Callable[[str], str]) -> None:
        """From now on every line goes through ``clean`` (which takes the secrets out)."""
        self._clean = clean

    def leave_off(self) -> None:
        """It hangs: no line of this process goes into it any more."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)

    @contextlib.contextmanager
    def open(self) -> Iterator[AttemptLog]:
        """Catch all logging of this process (it runs one attempt at a time) and what is printed by it."""
        with contextlib.ExitStack() as stack:
            try:
                handler = self._handler = self._open(stack)
            except OSError as error:
                logging.getLogger(__name__).warning("no log for this attempt: %s: %s", self._name, error)
                yield self
                return
            stack.enter_context(_listening(handler, self._hide))
            for name, redirect in (("stdout", contextlib.redirect_stdout), ("stderr", contextlib.redirect_stderr)):
                tee = _Tee(getattr(sys, name), logging.getLogger(f"step.{name}"), lambda text: self._clean(text))
                stack.callback(tee.finish)
                stack.enter_context(redirect(tee))
            yield self

    def _open(self, stack: contextlib.ExitStack) -> _Bounded:
        path = self.path
        if path is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstuck-log-")))
            path = folder / "attempt.log"
            stack.callback(self._upload, path)
        else:
            self._files.make_folder(self._name.rpartition("/")[0])
        handler = _Bounded(path)
        stack.callback(handler.close)
        return handler

    def _hide(self, record: logging.LogRecord) -> bool:
        """Take the secrets out of ``record``, before any handler formats it; always lets it through."""
        try:
            text = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a slip in a log line fails no step; plain logging lets it pass, too
            said = record.msg if isinstance(record.msg, str) else f"a {type(record.msg).__qualname__}"
            where = f"{record.filename}:{record.lineno}"
            text = f"{said} (this line cannot be put together, see {where}: {type(error).__name__})"
        record.msg, record.args = self._clean(text), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._clean(logging.Formatter().formatException(record.exc_info))
        return True

    def _upload(self, path: Path) -> None:
        """An object store takes a file as a whole, so its log appears when the attempt has ended."""
        try:
            self._files.write_durable(self._name, path.read_bytes())
        except (OSError, WarehouseMismatch) as error:
            logging.getLogger(__name__).warning("the log %s could not be stored: %s", self._name, error)


@contextlib.contextmanager
def _listening(handler: logging.Handler, hide: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """``handler`` on the root logger, from INFO on; the worker's own console stays at the level it was given.

    Every record goes through ``hide``, also to the console.
    """
    root = logging.getLogger()
    level = root.level
    consoles = [(h, h.level) for h in root.handlers]
    noisy: list[tuple[Any, int]] = [(logging.getLogger(name), logging.getLogger(name).level) for name in _QUIET]
    # What is printed reaches the worker's stream by itself; through the console's handlers it would show twice.
    prints = [logging.getLogger("step.stdout"), logging.getLogger("step.stderr")]
    for console, own in consoles:
        console.setLevel(max(level, own))
        console.addFilter(_not_printed)
        console.addFilter(hide)
    for logger, own in noisy:
        logger.setLevel(max(logging.WARNING, own))
    for logger in prints:
        logger.setLevel(logging.INFO)
    root.setLevel(min(level, logging.INFO) or logging.INFO)
    handler.addFilter(hide)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        for console, own in consoles:
            console.setLevel(own)
            console.removeFilter(_not_printed)
            console.removeFilter(hide)
        for logger, own in noisy:
            logger.setLevel(own)


def _not_printed(record: logging.LogRecord) -> bool:
    return record.name not in ("step.stdout", "step.stderr")
