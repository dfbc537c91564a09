"""Keeps the sweep, which runs every second, out of the logs of workers and beat while all is well."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_LOGGERS = ("celery.worker.strategy", "celery.app.trace", "celery.beat")


class NoSweeps(logging.Filter):
    """Drops Celery's INFO lines about one periodic task; its warnings and errors pass."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self._task = task

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return True
        said = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
        return self._task not in [value for value in said if isinstance(value, str)]


def hush(task: str) -> None:
    """Keep ``task`` out of the logs at INFO, in this process."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(NoSweeps(task))
