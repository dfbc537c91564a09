"""The memory that a runner shares with its watchdog."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace

import pytest

from unstuck.tasks.watchdog.policy import Clock
from unstuck.tasks.watchdog.runner_state import RunnerState, SharedRunnerState


@pytest.fixture
def shared() -> SharedRunnerState:
    return SharedRunnerState.create()


HELD = RunnerState(
    token="job/group[1]/1/n1/c1",
    since=1.5,
    taken=1.0,
    log="/warehouse/a.log",
    clocks={
        "TIMEOUT": Clock("TIMEOUT", 3.0, 1.0),
        "STEP_TIMEOUT": Clock("STEP_TIMEOUT", 2.0, 1.5, "step 1 of 1"),
    },
    progress='{"label": "ü"}',
    remark=" (it changed HOME)",
)


def test_every_process_with_the_descriptor_reads_the_last_state(shared: SharedRunnerState) -> None:
    reader = SharedRunnerState(shared.descriptor)
    assert reader.read() == RunnerState()
    for state in (HELD, RunnerState(idle=5.0), HELD):
        shared.write(state)
        assert reader.read() == reader.read() == state


@pytest.mark.parametrize("letter", ["x", "é", "漢", "🙂"])
def test_step_texts_that_do_not_fit_are_truncated(shared: SharedRunnerState, letter: str) -> None:
    clock = Clock("STEP_TIMEOUT", 1.0, 2.0, letter * 10**5)
    shared.write(HELD)
    long = letter * 10**6
    shared.write(
        RunnerState(token="job/g/1/n/c", progress=long, remark=long, clocks={clock.code: clock})
    )
    read = shared.read()
    assert (read.token, read.progress) == ("job/g/1/n/c", "")
    assert read.remark == letter * 500
    assert read.clocks["STEP_TIMEOUT"].ends == 3.0


def test_secrets_that_do_not_fit_are_reported_as_missing(
    shared: SharedRunnerState,
) -> None:
    """Without them no text of a step is shown, since it could not be cleaned."""
    shared.write(replace(HELD, secrets={"KEY": "x" * 10**5}))
    assert shared.read() == replace(HELD, secrets=None)
    shared.write(replace(HELD, secrets={"PW": "short"}, stages="[]"))
    assert shared.read().secrets == {"PW": "short"}


@pytest.mark.variant
def test_the_latest_state_is_complete_wherever_its_writer_is_killed(
    shared: SharedRunnerState,
) -> None:
    reader = SharedRunnerState(shared.descriptor)
    written = [
        RunnerState(token=f"job/g/{epoch}/n/c", remark="x" * random.randrange(4000))
        for epoch in range(200)
    ]
    for _ in range(20):
        if (writer := os.fork()) == 0:
            while True:
                for state in written:
                    shared.write(state)
        try:
            for _ in range(2000):
                assert reader.read() in (*written, RunnerState())
        finally:
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        assert reader.read() in (*written, RunnerState())


def test_foreign_content_of_the_shared_memory_is_an_error(
    shared: SharedRunnerState,
) -> None:
    shared.write(HELD)
    with open(shared.descriptor, "r+b", closefd=False, buffering=0) as file:
        file.seek(0)
        file.write(b"\x00" + b"spoilt" * 10_000)
    with pytest.raises(ValueError, match="no valid state of the runner"):
        SharedRunnerState(shared.descriptor).read()
