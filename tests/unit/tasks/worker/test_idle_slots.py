"""Idle slots: a worker has a runner to spare if one of its children says so, whatever Celery
believes.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.support.servers import wait_until
from unstuck.tasks.worker.idle_slots import MAX_CHILDREN, IdleSlots


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def slots(child: psutil.Process) -> IdleSlots:
    return IdleSlots(lambda: [child])


def test_only_a_waiting_child_is_free(slots: IdleSlots, child: psutil.Process) -> None:
    assert not slots.available, "it has not said that it waits"
    slots.idle(0, child.pid)
    assert slots.available
    slots.busy(0)
    assert not slots.available


def test_a_stopped_waiting_child_is_not_free(slots: IdleSlots, child: psutil.Process) -> None:
    """Celery has given it a job that it does not read; the others may be in the middle of
    theirs.
    """
    slots.idle(0, child.pid)
    child.suspend()
    wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
    assert not slots.available


def test_a_slot_counts_only_while_its_child_lives(slots: IdleSlots, child: psutil.Process) -> None:
    slots.busy(0)
    slots.idle(1, psutil.Process().pid)  # one of before, whose pid is no child's any more
    assert not slots.available


def test_a_worker_without_live_children_is_free(slots: IdleSlots, child: psutil.Process) -> None:
    """It may be one whose main process hangs, and whose runner has died since: no work can be lost
    with it.
    """
    slots.busy(0)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody takes leave of it: a zombie
    assert slots.available


def test_children_beyond_the_last_slot_count_as_busy(
    slots: IdleSlots, child: psutil.Process
) -> None:
    slots.idle(MAX_CHILDREN, child.pid)
    assert not slots.available


def test_children_that_cannot_be_inspected_count_as_busy() -> None:
    def children() -> list[psutil.Process]:
        raise OSError(errno.EMFILE, "no descriptor is left")

    assert not IdleSlots(children).available
