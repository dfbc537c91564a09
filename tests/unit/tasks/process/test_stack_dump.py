"""The stack that a process writes for another one, in real processes."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.servers import wait_until
from unstuck.tasks.process.stack_dump import RawFrame, StackDump, frames_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no real-time signals")


@contextmanager
def process(run: Callable[[StackDump], object]) -> Iterator[tuple[psutil.Process, StackDump]]:
    """A process that does ``run`` and then waits; and the other end of its dump, once it has
    begun.
    """
    dump = StackDump.install()
    assert dump is not None
    begun, begins = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(begins, b".")
            run(dump)
            threading.Event().wait()
        finally:
            os._exit(1)
    try:
        os.read(begun, 1)
        yield psutil.Process(pid), StackDump(dump.descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for descriptor in (dump.descriptor, begun, begins):
            os.close(descriptor)


def answer(of: psutil.Process, dump: StackDump) -> list[RawFrame]:
    """The frames that ``of`` answers."""

    def ask() -> tuple[list[RawFrame]] | None:
        dump.ask(of)
        found = dump.answer()
        return None if found is None else (found,)

    return wait_until(ask, 30, "an answer")[0]


def backtracks(dump: StackDump) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def grüße(dump: StackDump) -> None:
    time.sleep(600)  # until it is killed


def test_the_frames_of_a_process_in_a_c_call_can_be_read_repeatedly() -> None:
    with process(backtracks) as (of, dump):
        for _ in range(3):
            found = wait_until(
                lambda: (one := answer(of, dump)) and one[0].function == "match" and one,
                30,
                "the call",
            )
            assert found[1] == RawFrame(
                __file__, backtracks.__code__.co_firstlineno + 1, "backtracks"
            )


def test_a_non_ascii_name_is_read_correctly() -> None:
    with process(grüße) as (of, dump):
        assert wait_until(lambda: answer(of, dump)[0].function == "grüße", 30, "that function")


def test_an_interrupted_system_call_continues() -> None:
    read, write = os.pipe()
    told, tells = os.pipe()

    def reads(dump: StackDump) -> None:
        os.write(tells, os.read(read, 5))

    with process(reads) as (of, dump):
        for _ in range(5):
            answer(of, dump)
        os.write(write, b"whole")
        assert os.read(told, 10) == b"whole"


def test_the_frames_of_another_thread_are_not_shown_for_the_step(tmp_path: Path) -> None:
    """The signal goes to another thread if a step blocks it in the main thread meanwhile."""

    def dump(path: Path) -> list[RawFrame]:
        with path.open("wb") as file:
            faulthandler.dump_traceback(file, all_threads=False)
        return frames_in(path.read_bytes())

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(dump, tmp_path / "thread").result() == []
    assert dump(tmp_path / "main")[0].function == "dump"


@pytest.mark.parametrize("resets", [True, False])
def test_a_process_that_reused_the_signal_or_descriptor_is_not_signaled(
    tmp_path: Path, resets: bool
) -> None:
    """The signal would kill it, or the answer stand in a file of its own."""
    own = tmp_path / "own"

    def takes(dump: StackDump) -> None:
        if resets:
            for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
                signal.signal(number, signal.SIG_DFL)
        else:
            os.dup2(os.open(own, os.O_WRONLY | os.O_CREAT), dump.descriptor)
        (tmp_path / "done").touch()

    with process(takes) as (of, dump):
        wait_until((tmp_path / "done").exists, 30, "it to take it")
        dump.ask(of)
        assert dump.answer() is None
        assert of.is_running()
        assert of.status() != psutil.STATUS_ZOMBIE
        assert resets or not own.read_bytes()


def test_a_stopped_process_is_signaled_only_once() -> None:
    with process(grüße) as (of, dump):
        answer(of, dump)
        of.suspend()
        for _ in range(3):
            dump.ask(of)
            assert dump.answer() is None
        of.resume()
        found = wait_until(lambda: dump.answer(), 30, "the answer")
        assert [one.function for one in found].count("grüße") == 1
