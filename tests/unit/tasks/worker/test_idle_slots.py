"""Seats: a worker has a runner to spare if one of its children says so, whatever Celery believes."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.support.servers import wait_until
from unstuck.tasks.worker.idle_slots import MOST, Seats


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def seats(child: psutil.Process) -> Seats:
    return Seats(lambda: [child])


def test_a_child_that_starts_up_or_works_is_not_free_and_one_that_waits_is(seats: Seats, child: psutil.Process) -> None:
    assert not seats.free, "it has not said that it waits"
    seats.wait(0, child.pid)
    assert seats.free
    seats.work(0, child.pid)
    assert not seats.free


def test_a_child_that_waits_and_is_stopped_is_not_free(seats: Seats, child: psutil.Process) -> None:
    """Celery has given it a job that it does not read; the others may be in the middle of theirs."""
    seats.wait(0, child.pid)
    child.suspend()
    wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
    assert not seats.free


def test_a_seat_counts_only_while_its_child_lives(seats: Seats, child: psutil.Process) -> None:
    seats.work(0, child.pid)
    seats.wait(1, psutil.Process().pid)  # one of before, whose pid is no child's any more
    assert not seats.free


def test_a_worker_without_a_child_that_lives_is_free(seats: Seats, child: psutil.Process) -> None:
    """It may be one whose main process hangs, and whose runner has died since: no work can be lost with it."""
    seats.work(0, child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody takes leave of it: a zombie
    assert seats.free


def test_children_beyond_the_last_seat_count_as_at_work(seats: Seats, child: psutil.Process) -> None:
    seats.wait(MOST, child.pid)
    assert not seats.free


def test_children_that_cannot_be_looked_at_count_as_at_work() -> None:
    def children() -> list[psutil.Process]:
        raise OSError(errno.EMFILE, "no descriptor is left")

    assert not Seats(children).free
