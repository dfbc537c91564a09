"""The log of one attempt: a file in the folder of its job that ``unstuck logs`` shows.

It holds what the attempt's code logged and printed, with full tracebacks and without the attempt's
secrets. The log is
for people: a log that cannot be written never fails an attempt.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from unstuck.tasks.errors import WarehouseMismatch
from unstuck.tasks.log_lines import LogAs, formatter, one_line
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.runner.logs.stdio import Tee
from unstuck.tasks.warehouse.files import Files

MAX_BYTES = 32 * 1024 * 1024
_QUIET = [logging.getLogger(name) for name in ("py4j", "celery.utils", "kombu", "amqp")]
_LISTS = ("handlers", "filters")
_RESTORED = {"level", "disabled", "propagate", "handlers", "filters", "formatter"}


class _StepLogger(logging.Logger):
    """``ctx.log``, which stays enabled.

    ``dictConfig`` and ``fileConfig`` disable every logger that they do not name.
    """

    disabled = property(lambda self: False, lambda self, value: None)


class AttemptLog:
    """The log of the attempt this process runs, which is cut at ``MAX_BYTES``.

    It is written without a buffer, so that lines stay whole although other threads, forked children
    and the watchdog write to the same file.

    Attributes:
        path: the file on this machine, for the watchdog to write to; None on an object store.
        logger: ``ctx.log`` of the steps.
    """

    def __init__(
        self, files: Files, name: str, secrets: Secrets | None = None, log_as: LogAs = "text"
    ) -> None:
        """``name``: see `Token.log`. ``secrets`` are taken out of every line.

        ``files`` have been checked.
        """
        self._files = files
        self._as_json = log_as == "json"
        self._formatter = formatter(log_as)
        self._secrets = secrets or Secrets()
        self._name = name
        self.path = files.local_path(name)
        self.logger = logging.getLogger("step")
        self.logger.__class__ = _StepLogger
        self._left = 0  # bytes that may still be written
        self._append: Callable[[bytes], object] = lambda data: None  # to the file, once it is open

    def stop(self) -> None:
        """Stop recording lines of this process."""
        self._left = 0

    def write(self, record: logging.LogRecord) -> None:
        """Write bytes to the log. Never raises: a log that cannot be written fails no attempt."""
        if self._left <= 0:
            return
        try:
            _clean(record, self._secrets)
            data = (self._formatter.format(record) + "\n").encode("utf-8", "replace")
            self._left -= len(data)
            if self._left <= 0:
                cut = f"… this log is cut here: it has reached {MAX_BYTES // 2**20} MiB"
                line = one_line("json", "unstuck", "WARNING", cut) if self._as_json else cut
                data = f"{line}\n".encode()
            self._append(data)
        except (OSError, ValueError, TypeError) as error:
            self._left = 0
            _complain(f"the log {self._name} cannot be written any more: {error!r}")

    @contextlib.contextmanager
    def open(self) -> Iterator[AttemptLog]:
        """Record everything that this process logs and prints. It runs one attempt at a time."""
        with contextlib.ExitStack() as stack:
            try:
                self._open(stack)
            except OSError as error:
                logging.getLogger(__name__).warning(
                    "no log for this attempt: %s: %s", self._name, error
                )
                yield self
                return
            self._set_levels(stack)
            logged = stack.enter_context(_recording(self.write))
            for name, redirect in (
                ("stdout", contextlib.redirect_stdout),
                ("stderr", contextlib.redirect_stderr),
            ):
                # None in a process that was started without the descriptor.
                stream = getattr(sys, name) or stack.enter_context(
                    Path(os.devnull).open("w", encoding="utf-8")
                )
                put = partial(self._put, f"step.{name}", stream)
                tee = Tee(
                    name, stream, put, secrets=self._secrets, logged=logged, shows=not self._as_json
                )
                stack.callback(tee.finish)
                stack.enter_context(redirect(tee))
            yield self

    def _open(self, stack: contextlib.ExitStack) -> None:
        path = self.path
        if path is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstuck-log-")))
            path = folder / "attempt.log"
            stack.callback(self._upload, path)
        try:
            file = path.open("ab", buffering=0)
        except FileNotFoundError:  # the first log of its job
            self._files.make_folder(self._name.rpartition("/")[0], checked=True)
            file = path.open("ab", buffering=0)
        self._append = stack.enter_context(file).write
        stack.callback(self.stop)
        self._left = MAX_BYTES - file.tell()

    def _put(self, name: str, stream: TextIO, line: str) -> None:
        """Write a printed line. It goes past all loggers, whose handlers may print it again."""
        record = logging.LogRecord(name, logging.INFO, "", 0, line, None, None)
        self.write(record)
        if self._as_json:
            stream.write(f"{self._formatter.format(record)}\n")

    def _set_levels(self, stack: contextlib.ExitStack) -> None:
        """Log from INFO on. The worker's own console keeps its level, and shows no secret."""
        for target, before in set_levels():
            stack.callback(target.setLevel, before)
        for console in logging.getLogger().handlers:
            console.addFilter(self._clean_in_place)
            stack.callback(console.removeFilter, self._clean_in_place)

    def _clean_in_place(self, record: logging.LogRecord) -> bool:
        """A filter that takes the secrets out of ``record`` before a console formats it."""
        plain = _plain(record)
        record.msg, record.args, record.exc_text = plain.msg, None, plain.exc_text
        _clean(record, self._secrets)
        return True

    def _upload(self, path: Path) -> None:
        """Store the log when the attempt has ended: an object store takes a file as a whole."""
        try:
            self._files.write_durable(self._name, path.read_bytes())
        except (OSError, WarehouseMismatch) as error:
            logging.getLogger(__name__).warning(
                "the log %s could not be stored: %s", self._name, error
            )


def set_levels() -> list[tuple[logging.Logger | logging.Handler, int]]:
    """Log from INFO on, while consoles keep the level of root.

    Returns each changed logger or handler with its earlier level.

    A runner does so once, for good, since each change of a logger makes all loggers forget what
    they know.
    """
    root = logging.getLogger()
    levels: list[tuple[logging.Logger | logging.Handler, int]] = [
        *((console, max(root.level, console.level)) for console in root.handlers),
        *((logger, max(logger.level, logging.WARNING)) for logger in _QUIET),
        (root, min(root.level, logging.INFO) or logging.INFO),
    ]
    changed = [(target, target.level, level) for target, level in levels if target.level != level]
    for target, _, level in changed:
        target.setLevel(level)
    return [(target, before) for target, before, _ in changed]


def _plain(record: logging.LogRecord) -> logging.LogRecord:
    """A copy of ``record`` as text, without arguments. Raises nothing, whatever a step logs."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001
        # A mistake in a log line fails no step, as in plain logging.
        message = (
            record.msg if isinstance(record.msg, str) else f"a {type(record.msg).__qualname__}"
        )
        where = f"{record.filename}:{record.lineno}"
        text = f"{message} (this line cannot be put together, see {where}: {type(error).__name__})"
    trace = record.exc_text
    if record.exc_info and not trace:
        try:
            trace = logging.Formatter().formatException(record.exc_info)
        except Exception as error:  # noqa: BLE001 - the error is a step's, and may be of any kind
            trace = f"(the traceback cannot be shown: {type(error).__name__})"
    # Does not look up the thread and the process, which ``record`` has.
    plain = logging.LogRecord.__new__(logging.LogRecord)
    vars(plain).update(
        {**vars(record), "msg": text, "args": None, "exc_info": None, "exc_text": trace}
    )
    return plain


def _clean(record: logging.LogRecord, secrets: Secrets) -> None:
    """Remove ``secrets`` from all texts of ``record``, including logger, level and thread names."""
    if not secrets.values:
        return
    for name, value in vars(record).items():
        if isinstance(value, str):
            setattr(record, name, secrets.clean(value))


@contextlib.contextmanager
def _recording(write: Callable[[logging.LogRecord], None]) -> Iterator[Callable[[], bool]]:
    """Pass every record that reaches the root logger to ``write``.

    ``Logger.callHandlers`` is wrapped, because a step that sets up logging removes every handler
    from root. A step's own handler may print a record to ``sys.stdout``, which is the tee: it would
    be in the log twice.

    Yields: whether this thread is inside a handler that shows a record which is written already.
    """
    showing = threading.local()
    call_handlers = logging.Logger.callHandlers
    over = False

    def call(logger: logging.Logger, record: logging.LogRecord) -> None:
        if over or not _reaches_root(logger):
            return call_handlers(logger, record)
        write(_plain(record))
        depth = getattr(showing, "depth", 0)
        showing.depth = depth + 1
        try:
            call_handlers(logger, record)
        except Exception as error:
            if not logger.name.startswith("unstuck.tasks."):
                raise
            # A handler that a step added may raise, and must not end a thread of ours or leave an
            # attempt unfinished.
            _complain(f"a logging handler failed: {error!r}")
        finally:
            showing.depth = depth

    logging.Logger.callHandlers = call  # type: ignore[method-assign, assignment]
    try:
        yield lambda: getattr(showing, "depth", 0) > 0
    finally:
        over = True
        # Otherwise a library has wrapped it, and continues to call it.
        if logging.Logger.callHandlers is call:
            logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


def _reaches_root(logger: logging.Logger) -> bool:
    at = logger
    while at.propagate and at.parent is not None:
        at = at.parent
    return at.parent is None


@contextlib.contextmanager
def logging_restored() -> Iterator[None]:
    """Restore the settings of all loggers, and of root's handlers, after the block."""
    root = logging.getLogger()
    every = (root, *root.manager.loggerDict.values())
    loggers = [logger for logger in every if isinstance(logger, logging.Logger)]
    before = [_Logging(vars(target)) for target in (*loggers, *root.handlers)]
    disabled, factory = root.manager.disable, logging.getLogRecordFactory()
    try:
        yield
    finally:
        if root.manager.disable != disabled:
            logging.disable(disabled)
        logging.setLogRecordFactory(factory)
        changed = [settings.put_back() for settings in before]
        if any(changed):
            root.setLevel(root.level)  # makes every logger forget the levels that it had cached


class _Logging:
    """The settings of a logger or a handler, with the handlers and filters that it had."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings, self._before = settings, settings.copy()
        self._lists = {name: [*settings[name]] for name in _LISTS if name in settings}

    def put_back(self) -> bool:
        """Restore the settings. Returns whether any had changed."""
        now = (self._settings, {name: self._settings.get(name) for name in self._lists})
        if _equal(now, (self._before, self._lists)):
            return False
        for name in _RESTORED & self._before.keys():
            self._settings[name] = self._before[name]
        for name, elements in self._lists.items():
            self._before[name][:] = elements
        return True


def _equal(now: object, then: object) -> bool:
    try:
        return now == then
    except Exception:  # noqa: BLE001
        # This compares what a step stored there, which may be an object of any class.
        return False


def _complain(text: str) -> None:
    """Neither through logging nor to ``sys.stderr``, which both lead back to the log."""
    print(text, file=sys.__stderr__)
