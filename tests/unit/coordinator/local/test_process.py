"""A supervised process: what goes wrong around it ends neither its supervision nor its stop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.servers import wait_until
from unstuck.coordinator.local import process as module
from unstuck.coordinator.local.process import Program, SupervisedProcess

SLEEPS = (sys.executable, "-c", "import time; time.sleep(1000)")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[SupervisedProcess]:
    made = SupervisedProcess(Program("plain", SLEEPS), tmp_path / "plain.log", [].append)
    yield made
    assert made.kill() == []


def test_a_process_that_is_gone_before_it_was_looked_at_is_started_again(
    process: SupervisedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def gone_once(pid: int) -> psutil.Process:
        looked.append(pid)
        if len(looked) == 1:
            raise psutil.NoSuchProcess(pid)
        return psutil.Process(pid)

    monkeypatch.setattr(
        module, "psutil", type("Psutil", (), {"Process": staticmethod(gone_once), "Error": psutil.Error})
    )
    process.start()
    wait_until(lambda: process.pid, 10, "the process to run")
    assert len(looked) == 2


def test_a_stop_that_cannot_look_at_the_tree_asks_the_process_to_end_all_the_same(
    process: SupervisedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.start()
    wait_until(lambda: process.pid, 10, "the process to run")

    def no_descriptor(_: object) -> None:
        raise OSError("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(module.Tree, "remember", no_descriptor)
        process.stop()
    wait_until(lambda: process.pid is None, 10, "the process to end")
