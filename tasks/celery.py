"""The Celery app of workers, ``celery -A unstuck.tasks worker``, with a runner in each child.

A coordinator sends wake-ups through ``tasks.transport.celery_app`` and never imports this module.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from celery import signals

from unstuck.tasks.errors import HostUnfit
from unstuck.tasks.host import lacking
from unstuck.tasks.process.shutdown_flag import ShutdownLevel
from unstuck.tasks.settings import leave, settings
from unstuck.tasks.time_zone import use_zone
from unstuck.tasks.transport.celery_app import app, at_worker_start, refuse_other_pools
from unstuck.tasks.transport.kombu_fixes import Acknowledging
from unstuck.tasks.transport.stall_detector import StallDetector
from unstuck.tasks.worker.pool import TaskPool
from unstuck.tasks.worker.shutdown import this_worker

log = logging.getLogger(__name__)

# Seconds that a child lives which cannot be a runner, so that its worker does not fork without a
# pause.
PAUSE = 1.0

WITHOUT_JAVA = (
    "Groups with `spark: false` need no Java: start a worker for them with -Q light, or, for "
    "queues of other names, with UNSTUCK_SPARK_MASTER=none."
)

app.conf.worker_pool = TaskPool
app.steps["consumer"].add(Acknowledging)


@app.task(name="unstuck.run")  # type: ignore[untyped-decorator]
def run(queue: str = "") -> str:
    """Run ready attempts of ``queue`` and the worker's other queues. Returns a summary."""
    # Redis would refuse it with an error that a runner mistakes for trouble of the store.
    if not isinstance(queue, str):
        raise TypeError(f"the queue of a wake-up is its name, not {queue!r:.80}")
    # Imported when needed: Celery's commands, such as inspect, import this module too, and need no
    # runner.
    from unstuck.tasks.runner.runner import this_runner
    from unstuck.tasks.runner.take import run_ready

    done = run_ready(this_runner(), queue)
    return ", ".join(f"{what} ({count})" for what, count in done.items()) or "nothing stood ready"


class WorkerStallDetector(StallDetector):
    """The stall detector of a worker."""

    consequence = (
        "though messages wait there and it has an idle runner (UNSTUCK_STALLED_AFTER). It hands "
        "back what it runs and ends, so that its supervisor restarts it; no job is lost by that"
    )

    def at_work(self) -> bool:
        return this_worker().flag.level is ShutdownLevel.WORK

    def give_up(self) -> None:
        this_worker().give_up()

    def free(self, consumer: Any) -> bool:
        """Return whether the worker could take a message, also by what its runners report.

        A main process whose loop hangs would consider its runners busy for ever.
        """
        return super().free(consumer) or this_worker().idle_slots.available


app.steps["consumer"].add(WorkerStallDetector)


# Signals are global to a process: every receiver below acts for workers of this app alone.
_runner_slots: int | None = None


refuse_other_pools(
    app,
    "celery -A unstuck.tasks worker runs each attempt in a process of its own and needs the "
    "prefork pool: leave out -P/--pool, and give -c/--concurrency for more runners.",
)


def _refuse_unfit_host(_worker: Any) -> None:
    queues = sorted(app.amqp.queues.consume_from)
    try:
        use_zone(settings().time_zone)  # one for all lines of its log
    except HostUnfit as error:
        leave(f"This worker does not start: {error}.")
    if lacks := lacking(settings(), queues, WITHOUT_JAVA):
        leave(
            f"This worker does not start, since its host cannot run what {', '.join(queues)} may "
            f"bring.\n{lacks}"
        )


at_worker_start(app, _refuse_unfit_host)


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _count_slots(instance: Any, **_: Any) -> None:
    global _runner_slots
    if instance.app is app:
        _runner_slots = int(instance.concurrency)
        # Imported here, and shared by the runners that are forked from this process, and by their
        # watchdogs.
        import unstuck.tasks.runner.runner  # noqa: F401
        from unstuck.tasks.driver.host_trial import share_with_children
        from unstuck.tasks.steps.loaded import loaded

        loaded.look()
        share_with_children()


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _start_runner(**_: Any) -> None:
    if _runner_slots is None:
        return
    try:
        from unstuck.tasks.runner.runner import start_runner

        start_runner(
            queues=sorted(app.amqp.queues.consume_from),
            slots=_runner_slots,
            shutdown_flag=this_worker().flag,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, this child must take nothing
        # Celery would log it, and give this child wake-ups, each of which would be lost in it.
        log.critical(
            "the process %d cannot be a runner: %s: %s. It takes nothing and ends; the worker "
            "starts another, until one can. What stands ready waits meanwhile, or goes to other "
            "workers",
            os.getpid(),
            type(error).__name__,
            error,
        )
        time.sleep(PAUSE)
        raise SystemExit(os.EX_SOFTWARE) from None


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end_runner(**_: Any) -> None:
    if _runner_slots is not None:
        from unstuck.tasks.runner.runner import end_runner

        end_runner()
