"""The log of one attempt: a file beside its staging folder, as ``unstuck logs`` shows it.

It holds what the attempt's code logged and printed, and full tracebacks; one line a record, UTC, flushed at once
so that it can be followed. It is for people alone: nothing is ever decided from it, a log that cannot be written
never fails an attempt, and a secret that was resolved for the attempt never reaches it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from unstuck.tasks.errors import WarehouseMismatch
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.runner.stdio import Tee
from unstuck.tasks.warehouse.files import Files

MAX_BYTES = 32 * 1024 * 1024
_QUIET = ("py4j", "celery.utils", "kombu", "amqp")


class _Line(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _Bounded:
    """A file of lines until ``MAX_BYTES``; says so once, and then no more.

    No ``logging.Handler``, since ``dictConfig`` closes every handler there is. Without a buffer and for appending, so
    that a line is whole whoever writes beside it: another thread, a forked child, the watchdog.
    """

    def __init__(self, path: Path, secrets: Secrets) -> None:
        self.path = path
        self._secrets = secrets
        self._file = path.open("ab", buffering=0)
        self._left = MAX_BYTES - path.stat().st_size
        self._line = _Line()

    def write(self, record: logging.LogRecord) -> None:
        """Raises nothing: a log that cannot be written fails no attempt."""
        if self._left <= 0:
            return
        try:
            _clean(record, self._secrets)
            data = (self._line.format(record) + "\n").encode("utf-8", "replace")
            self._left -= len(data)
            if self._left <= 0:
                data = f"… this log is cut here: it has reached {MAX_BYTES // 2**20} MiB\n".encode()
            self._file.write(data)
        except (OSError, ValueError, TypeError) as error:
            self._left = 0
            _aside(f"the log {self.path} cannot be written any more: {error!r}")

    def leave_off(self) -> None:
        self._left = 0

    def close(self) -> None:
        self._left = 0
        self._file.close()


class _StepLogger(logging.Logger):
    """``ctx.log``. ``dictConfig`` and ``fileConfig`` disable every logger they do not know; this one they do not."""

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, _: bool) -> None:
        return


def _step_logger() -> logging.Logger:
    usual = logging.getLoggerClass()
    logging.setLoggerClass(_StepLogger)
    try:
        return logging.getLogger("step")
    finally:
        logging.setLoggerClass(usual)


class AttemptLog:
    """The open log of the attempt this process runs.

    Attributes:
        path: the file on this machine, for the watchdog to write its last words into; None on an object store.
        logger: what steps know as ``ctx.log``.
    """

    def __init__(self, files: Files, staging: str, secrets: Secrets | None = None) -> None:
        """``secrets``: to be taken out of every line."""
        self._files = files
        self._secrets = secrets or Secrets()
        self._name = f"{staging}.log"
        self.path = files.local_path(self._name)
        self.logger = _step_logger()
        self._sheet: _Bounded | None = None

    def leave_off(self) -> None:
        """It hangs: no line of this process goes into it any more."""
        if self._sheet is not None:
            self._sheet.leave_off()

    @contextlib.contextmanager
    def open(self) -> Iterator[AttemptLog]:
        """Catch all logging of this process (it runs one attempt at a time) and what is printed by it."""
        with contextlib.ExitStack() as stack:
            try:
                sheet = self._sheet = self._open(stack)
            except OSError as error:
                logging.getLogger(__name__).warning("no log for this attempt: %s: %s", self._name, error)
                yield self
                return
            stack.enter_context(_listening(self._hide))
            heard = stack.enter_context(_overhearing(sheet))
            for name, redirect in (("stdout", contextlib.redirect_stdout), ("stderr", contextlib.redirect_stderr)):
                # None in a process that was started without the descriptor.
                stream = getattr(sys, name) or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                put = partial(_put, sheet, f"step.{name}")
                tee = Tee(name, stream, put, secrets=self._secrets, heard=heard)
                stack.callback(tee.finish)
                stack.enter_context(redirect(tee))
            yield self

    def steps(self) -> contextlib.AbstractContextManager[None]:
        """Around the steps: puts back what they do to logging, before anything is said of how the attempt ended."""
        return _as_it_was()

    def _open(self, stack: contextlib.ExitStack) -> _Bounded:
        path = self.path
        if path is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstuck-log-")))
            path = folder / "attempt.log"
            stack.callback(self._upload, path)
        else:
            self._files.make_folder(self._name.rpartition("/")[0])
        sheet = _Bounded(path, self._secrets)
        stack.callback(sheet.close)
        return sheet

    def _hide(self, record: logging.LogRecord) -> bool:
        """Take the secrets out of ``record`` itself, before a console formats it; always lets it through."""
        plain = _plain(record)
        record.msg, record.args, record.exc_text = plain.msg, None, plain.exc_text
        _clean(record, self._secrets)
        return True

    def _upload(self, path: Path) -> None:
        """An object store takes a file as a whole, so its log appears when the attempt has ended."""
        try:
            self._files.write_durable(self._name, path.read_bytes())
        except (OSError, WarehouseMismatch) as error:
            logging.getLogger(__name__).warning("the log %s could not be stored: %s", self._name, error)


def _plain(record: logging.LogRecord) -> logging.LogRecord:
    """``record`` as text, without its arguments. Raises nothing, whatever a step logs."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - a slip in a log line fails no step; plain logging lets it pass, too
        said = record.msg if isinstance(record.msg, str) else f"a {type(record.msg).__qualname__}"
        where = f"{record.filename}:{record.lineno}"
        text = f"{said} (this line cannot be put together, see {where}: {type(error).__name__})"
    trace = record.exc_text
    if record.exc_info and not trace:
        try:
            trace = logging.Formatter().formatException(record.exc_info)
        except Exception as error:  # noqa: BLE001 - the error is a step's, and may be of any kind
            trace = f"(the traceback cannot be shown: {type(error).__name__})"
    plain = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, None, None)
    plain.created, plain.msecs, plain.levelname = record.created, record.msecs, record.levelname
    plain.exc_text, plain.stack_info = trace, record.stack_info
    return plain


def _clean(record: logging.LogRecord, secrets: Secrets) -> None:
    """Take ``secrets`` out of all texts of ``record``, such as the names of its logger, its level and its thread."""
    for name, value in vars(record).items():
        if isinstance(value, str):
            setattr(record, name, secrets.clean(value))


@contextlib.contextmanager
def _listening(hide: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """All loggers from INFO on. The worker's own console stays at the level it was given, and ``hide`` filters it."""
    root = logging.getLogger()
    level = root.level
    consoles = [(h, h.level) for h in root.handlers]
    noisy: list[tuple[Any, int]] = [(logging.getLogger(name), logging.getLogger(name).level) for name in _QUIET]
    for console, own in consoles:
        console.setLevel(max(level, own))
        console.addFilter(hide)
    for logger, own in noisy:
        logger.setLevel(max(logging.WARNING, own))
    root.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        for console, own in consoles:
            console.setLevel(own)
            console.removeFilter(hide)
        for logger, own in noisy:
            logger.setLevel(own)


@contextlib.contextmanager
def _overhearing(sheet: _Bounded) -> Iterator[Callable[[], bool]]:
    """Every record of this process that gets as far as the root logger goes into ``sheet``, as text.

    It is heard where loggers call their handlers, and not by one of these: a step that sets up logging removes every
    handler from root and closes it, or adds one that prints to ``sys.stdout``, which is the tee. What is printed while
    a record is shown is that record once more, so it is kept out of the log. As a record of its own it would come back
    to that handler, without end.

    Yields: whether this thread is showing a record that is in ``sheet`` already.
    """
    shown = threading.local()
    call_handlers = logging.Logger.callHandlers
    over = False

    def call(logger: logging.Logger, record: logging.LogRecord) -> None:
        if over or not _reaches_root(logger):
            return call_handlers(logger, record)
        sheet.write(_plain(record))
        depth = getattr(shown, "depth", 0)
        shown.depth = depth + 1
        try:
            call_handlers(logger, record)
        except Exception as error:
            if not logger.name.startswith("unstuck.tasks."):
                raise
            # A handler that a step put up may raise. It must end nothing of ours: a thread, or an attempt unfinished.
            _aside(f"a logging handler failed: {error!r}")
        finally:
            shown.depth = depth

    logging.Logger.callHandlers = call  # type: ignore[method-assign, assignment]
    try:
        yield lambda: getattr(shown, "depth", 0) > 0
    finally:
        over = True
        if logging.Logger.callHandlers is call:  # else a library put its own around it, which goes on through ours
            logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


def _reaches_root(logger: logging.Logger) -> bool:
    at = logger
    while at.propagate and at.parent is not None:
        at = at.parent
    return at.parent is None


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Put logging back: every logger that is there now, the handlers of root, and what holds for all of them."""
    root = logging.getLogger()
    named = [logger for logger in list(root.manager.loggerDict.values()) if isinstance(logger, logging.Logger)]
    loggers = [
        (logger, logger.level, logger.disabled, logger.propagate, list(logger.handlers), list(logger.filters))
        for logger in (root, *named)
    ]
    handlers = [(handler, handler.level, handler.formatter, list(handler.filters)) for handler in root.handlers]
    off, factory = root.manager.disable, logging.getLogRecordFactory()
    try:
        yield
    finally:
        logging.disable(off)
        logging.setLogRecordFactory(factory)
        for logger, level, disabled, propagate, its_handlers, filters in loggers:
            if logger.level != level:
                logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
            logger.handlers, logger.filters = its_handlers, filters
        for handler, level, formatter, filters in handlers:
            handler.level, handler.formatter, handler.filters = level, formatter, filters


def _put(sheet: _Bounded, name: str, line: str) -> None:
    """A line that was printed. Past all loggers, whose handlers may print it again."""
    sheet.write(logging.LogRecord(name, logging.INFO, "", 0, line, None, None))


def _aside(text: str) -> None:
    """Neither through logging nor to ``sys.stderr``: both lead back here."""
    print(text, file=sys.__stderr__)
