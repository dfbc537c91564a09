"""Extend Celery's prefork pool: children can ask to be replaced, and record when they are idle.

The main process learns here of its start and of every way to end (``shutdown``), and ends what a
killed child leaves. A child that hangs between attempts is killed by SIGALRM (``hang_alarm``).
"""

from __future__ import annotations

import gc
import logging
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from billiard.pool import EX_RECYCLE
from billiard.process import current_process
from celery.concurrency import asynpool, prefork

from unstuck.tasks.process import hang_alarm
from unstuck.tasks.process.shutdown_flag import ShutdownLevel
from unstuck.tasks.process.tree import adopt_orphans, end_strays, is_watchdog
from unstuck.tasks.settings import settings
from unstuck.tasks.transport.celery_app import START_WITHIN
from unstuck.tasks.worker.shutdown import become_main_process, this_worker

log = logging.getLogger(__name__)

_recycling = False
_recycling_at: float | None = None  # monotonic seconds; None: it may wait for ever


def recycle_this_process() -> None:
    """End this child before its next job; Celery starts another."""
    # billiard offers no way to ask for that but counting tasks or memory. Where a child is about to
    # wait for its next job, the last result is already sent, and no job has been read that could be
    # lost with the process.
    global _recycling
    _recycling = True


def recycle_this_process_at(moment: float) -> None:
    """Let this child end as above if it waits for a job at ``moment``, in monotonic seconds.

    The last call counts.
    """
    global _recycling_at
    _recycling_at = moment


class Worker(asynpool.Worker):  # type: ignore[misc]
    """One child of the pool."""

    wait_for_job: Callable[..., Any]

    def _make_child_methods(self, *args: Any, **kwargs: Any) -> None:
        # What comes after the start may be a try to claim.
        hang_alarm.install(START_WITHIN + settings().dispatch_timeout)
        super()._make_child_methods(*args, **kwargs)
        reader = self.inq._reader  # noqa: SLF001 - of billiard
        self.wait_for_job = _waiting_idle(self.wait_for_job, reader.fileno())


def _waiting_idle(wait: Callable[..., Any], jobs: int) -> Callable[..., Any]:
    slots, slot, pid = this_worker().idle_slots, current_process().index, os.getpid()

    def wait_idle(*args: Any, **kwargs: Any) -> Any:
        if _recycling:
            sys.exit(EX_RECYCLE)
        slots.idle(slot, pid)
        hang_alarm.cancel()
        if not _readable_in_time(jobs):
            hang_alarm.start()
            slots.busy(slot)
            sys.exit(EX_RECYCLE)
        job = True  # an exception tells this child to leave
        try:
            job = wait(*args, **kwargs)
        finally:
            if job:
                hang_alarm.start()
                slots.busy(slot)
        return job

    return wait_idle


def _readable_in_time(descriptor: int) -> bool:
    """Wait for something to read; False if the moment to end comes first."""
    # Not select(), which refuses descriptors from 1024 on.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while _recycling_at is not None:
        left = _recycling_at - time.monotonic()
        # `poll` takes at most 24 days in milliseconds.
        if poll.poll(min(max(left, 0.0), 3600.0) * 1000):
            return True
        if left <= 0:
            return False
    return True


class Pool(asynpool.AsynPool):  # type: ignore[misc]
    Worker = Worker

    def maintain_pool(self) -> None:
        """Maintain the pool. Celery calls this every few seconds, and when a child has died."""
        super().maintain_pool()
        try:
            ended = end_strays(self._owns, wait=0)
        except OSError as error:
            log.warning("what a runner left cannot be listed: %s", error)
            return
        if ended:
            log.warning(
                "the processes %s outlived their runner and were ended", ", ".join(map(str, ended))
            )

    def _owns(self, pid: int) -> bool:
        """Return whether a process is ours: a runner, a dead one's watchdog, or a helper.

        Helpers are what the main process started in its own group.
        """
        try:
            if pid in {worker.pid for worker in self._pool} or os.getpgid(pid) == os.getpgrp():
                return True
        except OSError:
            return False  # dead: it is reaped
        return is_watchdog(pid)


class TaskPool(prefork.TaskPool):  # type: ignore[misc]
    """``worker_pool`` of the Celery app of the fleet."""

    Pool = Pool

    def on_start(self) -> None:
        # Celery has set its own handlers by now.
        become_main_process(self.options["initargs"][1]).set_signal_handlers()
        adopt_orphans()
        gc.collect()
        # A collection in a child would write to the pages that it shares with this process.
        gc.freeze()
        super().on_start()

    def on_close(self) -> None:
        # A stop that came without a signal: ``celery control shutdown``, SIGHUP, an error that ends
        # the worker.
        this_worker().stop(ShutdownLevel.STOP)
        super().on_close()

    def on_terminate(self) -> None:
        this_worker().stop(ShutdownLevel.STOP_NOW)
        super().on_terminate()
