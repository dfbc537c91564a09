"""Runs the report consumer, the notice sender and the stall detector in the Celery worker.

If the thread of the consumer or the sender dies, or Celery has stalled, the process ends with an
error code, because some supervisors restart a process only then.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from unstuck.coordinator.notices.sender import Sender
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.wiring import consumer, sender
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.transport.stall_detector import StallDetector

log = logging.getLogger(__name__)
EXIT_CODE = 70  # EX_SOFTWARE
GRACE = 5.0  # seconds to let a round end when the worker stops


class Loop(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts and stops the thread of a loop with Celery's own consumer.

    Celery restarts its steps whenever the broker connection is lost; the thread is kept through
    that.
    """

    requires = ("celery.worker.consumer.connection:Connection",)
    what: str

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._loop: Consumer | Sender | None = None
        self._thread: threading.Thread | None = None

    def make(self) -> Consumer | Sender:
        raise NotImplementedError

    def start(self, parent: Any) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._loop = self.make()
        self._loop.stopping.clear()
        name = self.what.replace(" ", "-")
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name=name, daemon=True
        )
        self._thread.start()

    def shutdown(self, parent: Any) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.stopping.set()
            self._thread.join(GRACE)
            self._thread = None

    def _run(self, loop: Consumer | Sender) -> None:
        try:
            loop.run()
        except BaseException as error:
            end_as_failure()
            text = f"the {self.what} died; this coordinator ends so that its supervisor restarts it"
            run_with_deadline(partial(log.critical, text, exc_info=error))
            raise


class ReportConsumer(Loop):
    """Runs the report consumer, which decides jobs."""

    what = "report consumer"

    def make(self) -> Consumer:
        return consumer()


class NoticeSender(Loop):
    """Runs the sender of notices in its own thread, so that no decision waits for a receiver."""

    what = "notice sender"

    def make(self) -> Sender:
        return sender()


class CoordinatorStallDetector(StallDetector):
    """The stall detector of a coordinator, which receives submits and commands from Celery.

    Its own sweep works without Celery, so jobs are decided. But submits and commands through Celery
    would wait for ever.
    """

    consequence = (
        "though messages wait there and it has threads to spare (UNSTUCK_STALLED_AFTER). It ends, "
        "so that its supervisor restarts it; what waits there is heard by that one, or by another "
        "coordinator"
    )

    def at_work(self) -> bool:
        return all(
            word is None or word is False for word in (state.should_stop, state.should_terminate)
        )

    def give_up(self) -> None:
        end_as_failure()


def end_as_failure() -> None:
    """End this coordinator, so that its supervisor starts another. From any thread."""
    # Celery's warm shutdown waits for running tasks; a sweep that hangs must not keep the process
    # alive.
    last_resort = threading.Timer(2 * GRACE, os._exit, (EXIT_CODE,))
    last_resort.daemon = True
    last_resort.start()
    # A SIGTERM would end the process with code 0.
    state.should_stop = EXIT_CODE


def hide_from_log(task: str) -> None:
    """Log only warnings and errors of a task that runs every second."""
    for name in ("celery.worker.strategy", "celery.app.trace", "celery.beat"):
        logging.getLogger(name).addFilter(
            lambda record: record.levelno > logging.INFO or task not in record.getMessage()
        )
