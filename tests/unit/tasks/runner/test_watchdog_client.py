"""A watchdog client with a real watchdog: what a step may do to it, and what becomes of the
runner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support import fleet
from tests.support.programs.processes import command_line
from tests.support.servers import RedisServer, wait_until

pytestmark = pytest.mark.variant

# Does what it is told, line by line, and says what came of it; as a runner does with the steps of
# its attempts.
_RUNNER = """
import errno, logging, os, resource, signal, subprocess, sys, threading, time
from unstuck.tasks.runner.watchdog_client import WatchdogClient

def hoard(most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    hoarded = []
    try:
        while len(hoarded) < 1100:
            hoarded.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    return hoarded

def in_a_child(what):
    pid = os.fork()
    if not pid:
        try:
            what()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

class Hung(logging.Handler):
    def emit(self, record):
        threading.Event().wait()

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
hello = {"runner": "r", "worker": "here:1", "worker_pid": os.getppid(), "queues": []}
client = WatchdogClient(hello, lambda *_: None, max_stopped=0.5)
print(client.watchdog_pid, flush=True)
for line in sys.stdin:
    try:
        exec(line)
    except Exception as error:
        print(repr(error))
    print("done", flush=True)
"""


class ClientProcess:
    """The process with the client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout
        self.watchdog = psutil.Process(int(self._out.readline()))

    def do(self, line: str) -> str:
        """Tell it to do ``line``; answers what it prints, to ``done``, or less if it ends
        before.
        """
        self._in.write(line + "\n")
        self._in.flush()
        said = []
        for answer in self._out:
            if answer == "done\n":
                break
            said.append(answer.strip())
        return "\n".join(said)

    def says(self, text: str) -> None:
        """Wait until it writes a line with ``text`` on its standard error."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr), "it has ended"

    def another_watchdog(self) -> psutil.Process:
        """The one that has taken over."""

        def found() -> list[psutil.Process]:
            children = psutil.Process(self.process.pid).children()
            return [
                c
                for c in children
                if c.pid != self.watchdog.pid and "unstuck.tasks.watchdog" in command_line(c)
            ]

        (one,) = wait_until(found, 10, "another watchdog")
        return one

    def end(self) -> str:
        """What it said on its standard error, once it has ended by itself."""
        assert self.process.wait() == -signal.SIGKILL
        assert self.process.stderr is not None
        return self.process.stderr.read()


@pytest.fixture
def runner(redis_server: RedisServer) -> Iterator[ClientProcess]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", _RUNNER],
        env={
            **os.environ,
            "UNSTUCK_REDIS_URL": redis_server.url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        text=True,
        process_group=0,  # as a runner has: it ends itself with its group
        **streams,  # type: ignore[call-overload]
    )
    try:
        with process:
            yield ClientProcess(process)
            process.kill()
    finally:
        process.kill()


Does = Callable[[ClientProcess], object]


@pytest.mark.parametrize(
    ("step", "then", "says"),
    [
        (
            "hoard(64)",
            "os.kill(client.watchdog_pid, signal.SIGKILL)",
            "no other can be started: OSError: [Errno 24]",
        ),
        (
            "os.closerange(3, 64)",
            "time.sleep(60)",
            "cannot be read any more: OSError: [Errno 9] Bad file descriptor",
        ),
    ],
    ids=["no descriptor is left", "every descriptor was closed"],
)
def test_a_runner_that_cannot_start_a_watchdog_ends_with_its_children_and_a_reason(
    runner: ClientProcess, step: str, then: str, says: str
) -> None:
    """It would go on taking offers, and every one of them would be lost in it."""
    child = runner.do("print(subprocess.Popen(['sleep', '600'], process_group=0).pid)")
    assert runner.do(step) == ""
    runner.do(then)
    said = runner.end()
    assert "CRITICAL the " in said
    assert says in said
    assert (
        f"{runner.process.pid} ends itself with all that it started; the worker starts another"
        in said
    )
    wait_until(lambda: fleet.gone(int(child)), 5, "what the step had started to be gone")
    wait_until(lambda: fleet.gone(runner.watchdog.pid), 5, "the watchdog to be gone")


# As that of an attempt, on a mount whose server is gone.
HANG_THE_LOG = "logging.getLogger().addHandler(Hung())"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watchdog_is_replaced_although_the_log_hangs(
    runner: ClientProcess, number: signal.Signals
) -> None:
    runner.do(HANG_THE_LOG)
    runner.watchdog.send_signal(number)
    runner.another_watchdog()
    assert runner.do("client.taken(); print('taken')") == "taken", "and the runner goes on"


def test_a_runner_that_contacts_a_dead_watchdog_gets_another_although_the_log_hangs(
    runner: ClientProcess,
) -> None:
    runner.do(HANG_THE_LOG)
    # Until then nobody else can have noticed: the thread that would is not let go on.
    runner.do("client._lock.acquire()")
    runner.watchdog.kill()
    wait_until(lambda: fleet.gone(runner.watchdog.pid), 10, "the watchdog to be dead")
    assert runner.do("client.taken(); client._lock.release(); print('spoken')") == "spoken"
    runner.another_watchdog()


def test_a_runner_that_cannot_start_a_watchdog_ends_although_the_log_hangs(
    runner: ClientProcess,
) -> None:
    child = runner.do("print(subprocess.Popen(['sleep', '600'], process_group=0).pid)")
    runner.do(HANG_THE_LOG)
    runner.do("hoarded = hoard(64)")
    runner.do("os.kill(client.watchdog_pid, signal.SIGKILL)")
    assert "ends itself with all that it started" in runner.end()
    wait_until(lambda: fleet.gone(int(child)), 5, "what the step had started to be gone")


def test_a_watchdog_pipe_may_have_a_descriptor_above_1023(runner: ClientProcess) -> None:
    """As that of a new one may have, when the step has a thousand files open.

    select() refuses it.
    """
    runner.do("hoarded = hoard(4096)")
    runner.do("client = WatchdogClient(hello, lambda *_: None, max_stopped=0.5)")
    stopped = int(runner.do("print(client.watchdog_pid)"))
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: fleet.gone(stopped), 10, "the stopped watchdog to be killed")
    wait_until(
        lambda: runner.do("print(client.watchdog_pid)") != str(stopped), 10, "another watchdog"
    )


@pytest.mark.parametrize(
    ("step", "undone"),
    [
        ("hoarded = hoard(64)", "[os.close(one) for one in hoarded]"),
        ("import builtins; there = builtins.open; builtins.open = None", "builtins.open = there"),
    ],
    ids=["no descriptor is left", "a builtin is replaced"],
)
def test_a_frozen_watchdog_is_replaced_although_it_could_not_be_inspected_for_a_while(
    runner: ClientProcess, step: str, undone: str
) -> None:
    runner.do(step)
    for _ in range(4):
        runner.says("the state of the watchdog")
    runner.watchdog.suspend()
    runner.do(undone)
    runner.another_watchdog()
    assert fleet.gone(runner.watchdog.pid)


def test_a_child_of_a_step_that_closes_all_descriptors_does_not_end_the_runner(
    runner: ClientProcess,
) -> None:
    runner.do("in_a_child(lambda: (os.closerange(3, 64), client.taken()))")
    assert runner.do("client.taken(); print('taken')") == "taken"
    assert runner.watchdog.is_running()
