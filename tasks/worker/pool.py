"""The prefork pool of workers: Celery's own, whose children may ask to be replaced and note when they are idle.

The main process learns here of its start and of every way to end (``shutdown``), and ends what a killed child leaves. A
child that hangs between attempts is killed by SIGALRM (``hang_alarm``).
"""

from __future__ import annotations

import logging
import os
import sys
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
from unstuck.tasks.worker import shutdown as stopping
from unstuck.tasks.worker.idle_slots import IdleSlots

log = logging.getLogger(__name__)

_wanted = False


def recycle_this_process() -> None:
    """Let this child end cleanly before it takes its next job; Celery starts another in its place."""
    # billiard offers no way to ask for that but counting tasks or memory. Where a child is about to wait for its next
    # job, the last result is already sent, and no job has been read that could be lost with the process.
    global _wanted
    _wanted = True


class Worker(asynpool.Worker):  # type: ignore[misc]
    """One child of the pool."""

    wait_for_job: Callable[..., Any]

    def _make_child_methods(self, *args: Any, **kwargs: Any) -> None:
        # What comes after the start may be a try to claim.
        hang_alarm.install(START_WITHIN + settings().dispatch_timeout)
        super()._make_child_methods(*args, **kwargs)
        self.wait_for_job = _or_leave(_noting_idle(self.wait_for_job))


def _or_leave(wait: Callable[..., Any]) -> Callable[..., Any]:
    def wait_or_leave(*args: Any, **kwargs: Any) -> Any:
        if _wanted:
            sys.exit(EX_RECYCLE)
        return wait(*args, **kwargs)

    return wait_or_leave


def _noting_idle(wait: Callable[..., Any]) -> Callable[..., Any]:
    worker, slot, pid = stopping.this_worker(), current_process().index, os.getpid()
    assert worker is not None
    assert worker.idle_slots is not None, "made before the first child is forked"
    slots = worker.idle_slots

    def on_the_way() -> None:
        hang_alarm.start()
        slots.busy(slot, pid)

    def wait_idle(*args: Any, **kwargs: Any) -> Any:
        slots.idle(slot, pid)
        hang_alarm.cancel()
        try:
            job = wait(*args, **kwargs)
        except BaseException:  # it is told to leave
            on_the_way()
            raise
        if job:
            on_the_way()
        return job

    return wait_idle


class Pool(asynpool.AsynPool):  # type: ignore[misc]
    Worker = Worker

    def maintain_pool(self) -> None:
        """Called every few seconds, and when a child has died."""
        super().maintain_pool()
        try:
            ended = end_strays(self._owns, wait=0)
        except OSError as error:
            log.warning("what a runner left cannot be listed: %s", error)
            return
        if ended:
            log.warning("the processes %s outlived their runner and were ended", ", ".join(map(str, ended)))

    def _owns(self, pid: int) -> bool:
        """True for a runner, for the watchdog of a dead one, and for whatever else the main process started itself.

        The last is in its process group; a runner leads a group of its own, which its watchdog kills.
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
        self._stopping = stopping.begin(self.options["initargs"][1])
        self._stopping.take_signals()  # Celery has set its own by now
        self._stopping.idle_slots = IdleSlots()
        adopt_orphans()
        super().on_start()

    def on_close(self) -> None:
        # A stop that came without a signal: ``celery control shutdown``, SIGHUP, an error that ends the worker.
        self._stopping.stop(ShutdownLevel.STOP)
        super().on_close()

    def on_terminate(self) -> None:
        self._stopping.stop(ShutdownLevel.STOP_NOW)
        super().on_terminate()
