"""The sweep runs every second; a person who reads the log at night must not wade through it."""

from __future__ import annotations

import logging

import pytest

from unstuck.coordinator.reconcile.bootsteps import hide_from_log


def test_only_info_messages_of_the_sweep_task_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    hide_from_log("unstuck.sweep")
    log = logging.getLogger("celery.app.trace")
    with caplog.at_level(logging.INFO, "celery.app.trace"):
        log.info("Task %(name)s succeeded", {"name": "unstuck.sweep", "id": "1"})
        log.info("Scheduler: Sending due task %s (%s)", "sweep", "unstuck.sweep")
        log.info("Task %(name)s succeeded", {"name": "unstuck.submit", "id": "1"})
        log.error("Task %(name)s raised", {"name": "unstuck.sweep", "id": "1"})
    assert caplog.messages == ["Task unstuck.submit succeeded", "Task unstuck.sweep raised"]
