"""Format log lines as text or JSON, with the job, group, attempt and schedule they concern."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogAs = Literal["text", "json"]

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_of_thread: ContextVar[dict[str, str | int] | None] = ContextVar("work", default=None)
_of_process: dict[str, str | int] = {}

# Of the log of an attempt, which `unstuck logs` shows.
TEXT = logging.Formatter(
    "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
)
TEXT.converter = time.gmtime


@contextmanager
def about(**work: str | int) -> Iterator[None]:
    """Say of this thread's lines within the block that they are about ``work``."""
    token = _of_thread.set({**(_of_thread.get() or {}), **work})
    try:
        yield
    finally:
        _of_thread.reset(token)


def also_about(**work: str | int) -> None:
    """Say more of the lines within the innermost `about` block."""
    if (current := _of_thread.get()) is not None:
        current.update(work)


def process_is_about(**work: str | int) -> None:
    """Attach ``work`` to all log lines of this process, of any thread; without it, detach.

    For a process that does one thing at a time. A step may log from threads of its own, which know
    of no block.
    """
    global _of_process
    _of_process = work


def work_here() -> dict[str, str | int]:
    """The work that a line of this thread is about."""
    return {**_of_process, **(_of_thread.get() or {})}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line, with its work and the plain values of its ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[
                :-6
            ]
            + "Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **work_here(),
        }
        if record.exc_info or record.exc_text:
            line["exception"] = record.exc_text or self.formatException(
                record.exc_info  # type: ignore[arg-type]
            )
        if record.stack_info:
            line["stack"] = record.stack_info
        for name, value in vars(record).items():
            if name not in _OWN and _is_plain(value):
                line.setdefault(name, value)
        text = json.dumps(line)
        # Half of a surrogate pair: many JSON readers refuse the whole line.
        if "\\ud" in text:
            text = json.dumps(
                json.loads(json.dumps(line, ensure_ascii=False).encode(errors="replace"))
            )
        return text


def formatter(log_as: LogAs, text: logging.Formatter = TEXT) -> logging.Formatter:
    """The formatter for ``UNSTUCK_LOG``; ``text``: that of lines that are not JSON."""
    return JsonFormatter() if log_as == "json" else text


def one_line(log_as: LogAs, logger: str, level: str, message: str) -> str:
    """A line that goes past all loggers."""
    return formatter(log_as).format(
        logging.makeLogRecord({"name": logger, "levelname": level, "msg": message})
    )


def as_text(line: str) -> str:
    """A line of JSON as the line that would have been written as text; any other line as it is."""
    if not line.startswith('{"'):
        return line
    try:
        read = json.loads(line)
        text = f"{read['time']} {read['level']} {read['logger']}: {read['message']}"
        return "\n".join(
            [text, *(str(read[name]) for name in ("exception", "stack") if name in read)]
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return line  # a step may have printed it


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
