"""The runners of a worker share what they find out about their host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import pytest

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.driver.host_state import SharedHostState
from unstuck.tasks.driver.host_trial import HostTrial
from unstuck.tasks.settings import Settings

SETTINGS = Settings(spark_master="sc://host:15002")  # so that only the driver can find a fault


class StubDriver:
    """A driver whose sessions start, after ``while_starting`` was called."""

    running = False

    def __init__(self, while_starting: Callable[[], None]) -> None:
        self.start = while_starting
        self.arrow_trials = 0

    def try_arrow(self) -> None:
        self.arrow_trials += 1


@pytest.fixture
def host() -> Iterator[SharedHostState]:
    state = SharedHostState.create()
    yield state
    assert state.descriptor is not None
    os.close(state.descriptor)


def trial(host: SharedHostState, while_starting: Callable[[], None] = lambda: None) -> HostTrial:
    return trial_with(host, StubDriver(while_starting))


def trial_with(host: SharedHostState, driver: StubDriver) -> HostTrial:
    return HostTrial(cast(Driver, driver), SETTINGS, ["spark"], host, retry_after=0.0)


def test_a_passed_trial_clears_the_fault_for_all_runners(host: SharedHostState) -> None:
    host.record("the disk is full")
    assert trial(host).before_work(nullcontext) == ""
    assert host.read().fault == ""


def test_a_passed_trial_keeps_a_fault_that_another_runner_found_meanwhile(
    host: SharedHostState,
) -> None:
    host.record("the disk is full")
    runner = trial(host, while_starting=lambda: host.record("the JVM has no memory"))
    assert runner.before_work(nullcontext) == "the JVM has no memory"
    assert host.read().fault == "the JVM has no memory"


def test_a_trial_of_arrow_does_not_renew_the_time_of_an_older_fault(host: SharedHostState) -> None:
    host.record("the disk is full")
    before = host.read()
    trial(host).first_session()
    assert host.read() == replace(before, arrow_tried=True)


def test_only_the_first_session_of_a_worker_tries_arrow(host: SharedHostState) -> None:
    driver = StubDriver(lambda: None)
    for _ in range(2):
        trial_with(host, driver).first_session()
    assert driver.arrow_trials == 1


def test_a_runner_never_reads_a_fault_that_another_has_written_half(host: SharedHostState) -> None:
    faults = {"", "a" * 20, "b" * 1900}
    child = os.fork()
    if not child:
        for _ in range(2000):
            for fault in faults:
                host.record(fault)
        os._exit(0)
    read = set()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        read |= {host.read().fault for _ in range(100)}
    assert read <= faults
