"""Runs the report consumer and the stall detector inside the coordinator's Celery worker, and keeps its log quiet.

If the consumer's thread dies, or Celery has stalled, the process ends with an error code, because some supervisors
restart a process only then.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.wiring import consumer
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.transport.stall_detector import StallDetector

log = logging.getLogger(__name__)
EXIT_CODE = 70  # EX_SOFTWARE
GRACE = 5.0  # seconds to let a round end when the worker stops


class ReportConsumer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts and stops the consumer's thread with Celery's own consumer.

    Celery restarts its steps whenever the broker connection is lost; the thread is kept through that.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._consumer = consumer()
        self._consumer.stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(self._consumer,), name="report-consumer", daemon=True)
        self._thread.start()

    def shutdown(self, parent: Any) -> None:
        if self._consumer is not None and self._thread is not None:
            self._consumer.stopping.set()
            self._thread.join(GRACE)
            self._thread = None

    def _run(self, consumer: Consumer) -> None:
        try:
            consumer.run()
        except BaseException as error:
            end_as_failure()
            text = "the report consumer died; this coordinator ends so that its supervisor restarts it"
            run_with_deadline(partial(log.critical, text, exc_info=error))
            raise


class CoordinatorStallDetector(StallDetector):
    """The stall detector of a coordinator, which takes submits, commands and the sweeps of beat from Celery.

    Its own sweep goes on without Celery, so jobs are decided; but a submit or a command through Celery would wait for
    ever.
    """

    consequence = (
        "though messages wait there and it has threads to spare (UNSTUCK_STALLED_AFTER). It ends, so that its "
        "supervisor restarts it; what waits there is heard by that one, or by another coordinator"
    )

    def at_work(self) -> bool:
        return all(word is None or word is False for word in (state.should_stop, state.should_terminate))

    def give_up(self) -> None:
        end_as_failure()


def end_as_failure() -> None:
    """End this coordinator, so that its supervisor starts another. From any thread."""
    # Celery's warm shutdown waits for running tasks; a sweep that hangs must not keep the process alive.
    last_resort = threading.Timer(2 * GRACE, os._exit, (EXIT_CODE,))
    last_resort.daemon = True
    last_resort.start()
    # A SIGTERM would end the process with code 0.
    state.should_stop = EXIT_CODE


def hide_from_log(task: str) -> None:
    """Keep a task that runs every second out of the log of workers and beat, but for warnings and errors."""
    for name in ("celery.worker.strategy", "celery.app.trace", "celery.beat"):
        logging.getLogger(name).addFilter(
            lambda record: record.levelno > logging.INFO or task not in record.getMessage()
        )
