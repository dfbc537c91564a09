"""The sweep runs every second; a person who reads the log at night must not wade through it."""

from __future__ import annotations

import logging

from unstuck.coordinator.reconcile.bootsteps import TaskLogFilter


def line(level: int, *args: object) -> logging.LogRecord:
    return logging.LogRecord("celery.app.trace", level, "f", 1, "%s", args, None)  # type: ignore[arg-type]


def test_only_the_sweeps_task_at_info_is_dropped() -> None:
    sweeps = TaskLogFilter("unstuck.sweep")
    assert not sweeps.filter(line(logging.INFO, {"name": "unstuck.sweep", "id": "1"}))
    assert not sweeps.filter(line(logging.INFO, "sweep", "unstuck.sweep"))
    assert sweeps.filter(line(logging.INFO, {"name": "unstuck.submit", "id": "1"}))
    assert sweeps.filter(line(logging.ERROR, {"name": "unstuck.sweep", "id": "1"}))
    assert sweeps.filter(line(logging.INFO))
