"""The shutdown flag, and a runner whose worker has raised it."""

from __future__ import annotations

import os
import select
from types import SimpleNamespace
from typing import Any, cast

from unstuck.tasks.process.shutdown_flag import ShutdownFlag
from unstuck.tasks.process.shutdown_flag import ShutdownLevel as Level
from unstuck.tasks.runner.runner import Runner
from unstuck.tasks.runner.take import run_ready


def test_every_process_sees_the_shutdown_level() -> None:
    flag = ShutdownFlag.create()
    lookers = [ShutdownFlag(os.dup(flag.read_fd)) for _ in range(3)]
    seen = []
    for level in (Level.WORK, Level.STOP, Level.STOP, Level.STOP_NOW, Level.STOP):
        flag.raise_to(level)
        seen.append({looker.level for looker in lookers})
    assert seen == [{Level.WORK}, {Level.STOP}, {Level.STOP}, {Level.STOP_NOW}, {Level.STOP_NOW}]
    late = ShutdownFlag(os.dup(flag.read_fd))
    assert late.level is Level.STOP_NOW


def test_a_flag_of_a_dead_worker_is_not_raised() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert select.select([reading], [], [], 0)[0], "it can be read: the end of the pipe"
    assert ShutdownFlag(reading).level is Level.WORK


def test_a_runner_of_a_stopping_worker_takes_no_ready_offer() -> None:
    """It has no store: any try to take would raise."""
    runner = cast(Any, Runner.__new__(Runner))
    runner.watchdog = SimpleNamespace(taken=lambda: None)
    runner.lease = SimpleNamespace(sleep=lambda: None)
    runner.replaced, runner.queues = False, ("light",)
    runner.shutdown_flag = ShutdownFlag.create()
    runner.shutdown_flag.raise_to(Level.STOP)
    assert not run_ready(runner)
