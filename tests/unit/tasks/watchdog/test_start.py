"""How the process of a watchdog is started: what a fork keeps of its runner, and when it is
none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.support.programs.processes import command_line
from tests.support.servers import RedisServer, wait_until

pytestmark = pytest.mark.variant

_RUNNER = """
import logging, os, signal, sys, threading, time
from unstuck.tasks.watchdog.start import start_watchdog
from unstuck.tasks.watchdog.runner_state import RunnerState, SharedRunnerState

class Hung(logging.Handler):
    def emit(self, record):
        threading.Event().wait()

logging.basicConfig(handlers=[Hung()], level=logging.DEBUG)
logging.getLogger("unstuck").addHandler(Hung())
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
shared = SharedRunnerState.create()
shared.write(RunnerState(idle=time.time()))
hello = {"runner": "r", "pid": os.getpid(), "worker": "here:1", "worker_pid": os.getppid(), "queues": []}
hello |= {"shared": shared.descriptor}
read, write = os.pipe()

def start():
    process = start_watchdog(hello, [shared.descriptor])
    print(process.pid, type(process).__name__, flush=True)
    return process

process = start()
for line in sys.stdin:
    exec(line)
"""


class StarterProcess:
    """The process that starts watchdogs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.watchdog, self.kind = self.started()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def started(self) -> tuple[psutil.Process, str]:
        pid, kind = self.said().split()
        return psutil.Process(int(pid)), kind


@contextmanager
def started(redis_url: str) -> Iterator[StarterProcess]:
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER],
        env={**os.environ, "UNSTUCK_REDIS_URL": redis_url, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        process_group=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield StarterProcess(process)
        finally:
            process.kill()


@pytest.fixture
def runner(redis_server: RedisServer) -> Iterator[StarterProcess]:
    with started(redis_server.url) as runner:
        yield runner


def watches(watchdog: psutil.Process) -> bool:
    """It is connected to Redis."""
    return "unstuck.tasks.watchdog" in command_line(watchdog) and bool(
        watchdog.net_connections("tcp")
    )


def test_a_single_threaded_process_forks_its_watchdog_and_others_start_python(
    runner: StarterProcess,
) -> None:
    assert runner.kind == "ForkedWatchdog"
    runner.do("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(); start()")
    other, kind = runner.started()
    assert kind == "Popen"
    for watchdog in (runner.watchdog, other):
        wait_until(lambda: watches(watchdog), 10, "the watchdog to watch")  # noqa: B023
    forked, started = (one.memory_full_info().uss for one in (runner.watchdog, other))
    assert forked < started / 2, "what the runner has imported is not shared"


def test_a_forked_watchdog_leaves_the_process_group_of_its_runner(
    runner: StarterProcess,
) -> None:
    """The runner may kill its group at once. On a busy host, the watchdog is slow to leave it."""
    runner.do("setsid = os.setsid; os.setsid = lambda: (time.sleep(0.3), setsid())")
    runner.do("process = start(); print(os.getsid(process.pid), flush=True)")
    watchdog, kind = runner.started()
    assert kind == "ForkedWatchdog"
    assert runner.said() == str(watchdog.pid)


def test_a_forked_watchdog_is_found_and_shown_as_a_watchdog(runner: StarterProcess) -> None:
    wait_until(lambda: watches(runner.watchdog), 10, "it to watch")
    assert runner.watchdog.cmdline()[0] == "unstuck.tasks.watchdog"
    assert os.getsid(runner.watchdog.pid) == runner.watchdog.pid, (
        "a signal to its runner's terminal would reach it"
    )


def test_a_forked_watchdog_keeps_no_descriptor_of_its_runner(runner: StarterProcess) -> None:
    """billiard knows the death of a child by the end of a pipe, which the child's own children must
    not hold open.
    """
    runner.do("os.close(write); print(os.read(read, 1), flush=True)")
    assert runner.said() == "b''"
    wait_until(lambda: watches(runner.watchdog), 10, "it to watch")
    ours = f"/proc/{runner.process.pid}/fd"
    pipes = {os.readlink(f"{ours}/{n}") for n in ("0", "1")}
    kept = {
        os.readlink(f"/proc/{runner.watchdog.pid}/fd/{n}")
        for n in os.listdir(f"/proc/{runner.watchdog.pid}/fd")
    }
    assert not pipes & kept


def test_a_forked_watchdog_keeps_no_signal_handler_and_its_end_is_reported(
    runner: StarterProcess,
) -> None:
    wait_until(lambda: watches(runner.watchdog), 10, "it to watch")
    runner.watchdog.send_signal(signal.SIGUSR1)
    runner.do("print(process.wait(), process.wait(), flush=True)")
    assert runner.said() == f"{-signal.SIGUSR1} 0"


def test_a_forked_watchdog_writes_to_no_log_of_its_runner() -> None:
    """A log that hangs would keep it from its work."""
    with started("redis://127.0.0.1:1/0") as runner:
        runner.do("shared.write(RunnerState(token='job/g/1/n1/c'))")
        assert runner.process.stderr is not None
        failed = (
            line for line in runner.process.stderr if "the lease could not be renewed" in line
        )
        assert "WARNING watchdog: job/g/1/n1/c" in next(failed)
        assert "WARNING watchdog: job/g/1/n1/c" in next(failed)
        runner.watchdog.kill()  # it would go on to report for its runner
