"""The local fleet without its terminal, without its folder of logs, and beside a Redis that is not
ready.

Real processes and real signals; stand-ins for the Celery programs, as in test_up.py.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.programs.foreground import PLAIN, Up
from tests.support.servers import free_port, wait_until
from unstuck.coordinator.errors import FleetRunning
from unstuck.local.home import Home
from unstuck.local.process import Program, SupervisedProcess

pytestmark = pytest.mark.variant

# Says in a file that it was asked to end, as a worker would hand back.
POLITE = """
import pathlib, signal, sys, time
def asked(*_):
    pathlib.Path("asked").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
print("listening", flush=True)
time.sleep(1000)
"""
# Prints as fast as it can, and waits where its log would become larger than 300,000 bytes.
CHATTY = """
import itertools, os, time
for number in itertools.count():
    print(f"line {number:09}", flush=True)
    while os.fstat(1).st_size > 300_000:
        time.sleep(0.005)
"""


@pytest.mark.parametrize("terminal", ["pipe", "tty"])
def test_closing_the_terminal_shuts_the_fleet_down_cleanly(
    up: Callable[..., Up], tmp_path: Path, terminal: Literal["pipe", "tty"]
) -> None:
    """A write to a terminal that hung up raises; the attempts must be handed back all the same."""
    fleet = up(terminal, programs={"polite": POLITE}, grace=10.0)
    fleet.says("Ready")
    fleet.family()
    wait_until((fleet.home / "log" / "polite.log").read_text, 10, "the process to listen")

    fleet.loses_its_terminal()
    if terminal == "pipe":
        fleet.signal(signal.SIGHUP)

    assert fleet.code() == 0
    assert (tmp_path / "asked").exists()
    assert fleet.left() == []
    assert "Stopping" in fleet.own_log
    assert "Stopped" in fleet.own_log


@pytest.mark.parametrize(
    "ignored", [signal.SIGINT, signal.SIGHUP], ids=["in the background of a script", "nohup"]
)
def test_a_fleet_started_with_an_ignored_signal_ignores_it_and_ends_on_sigterm(
    up: Callable[..., Up], ignored: signal.Signals
) -> None:
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        fleet = up(programs={"plain": PLAIN})
    finally:
        signal.signal(ignored, before)
    fleet.says("Ready")
    plain = fleet.find("time.sleep(1000)")
    assert plain is not None

    fleet.signal(ignored)

    plain.kill()
    fleet.is_back("time.sleep(1000)", plain.pid)  # a fleet that stops starts nothing again
    assert "Stopping" not in fleet.text
    fleet.signal(signal.SIGTERM)
    assert fleet.code() == 0


def test_a_fleet_whose_output_pipe_is_closed_still_restarts_processes(
    up: Callable[..., Up],
) -> None:
    """As in ``unstuck up | grep -m1 Ready``."""
    fleet = up("pipe", programs={"plain": PLAIN})
    fleet.says("Ready")
    first = fleet.find(PLAIN)
    assert first is not None
    fleet.loses_its_terminal()

    first.kill()

    fleet.is_back(PLAIN, first.pid, 10)
    assert (
        f"plain (pid {first.pid}) was killed by signal SIGKILL; it is started again in 0.5 s"
        in fleet.own_log
    )
    fleet.family()
    fleet.signal(signal.SIGTERM)
    assert fleet.code() == 0
    assert fleet.left() == []


def test_a_signal_delivered_to_another_thread_ends_the_fleet(
    up: Callable[..., Up],
) -> None:
    """As it does now and then; a wait of the main thread is not interrupted then."""
    fleet = up(programs={"plain": PLAIN})
    fleet.says("Ready")
    main = psutil.Process(fleet.process.pid)
    another = next(one.id for one in main.threads() if one.id != main.pid)
    assert ctypes.CDLL(None).tgkill(main.pid, another, signal.SIGTERM) == 0
    assert fleet.code() == 0


def test_a_blocked_output_pipe_does_not_prevent_restarts(
    up: Callable[..., Up],
) -> None:
    """A terminal held with ^S, or a pager: the pipe is full, and a write to it would wait for
    ever.
    """
    fleet = up("pipe", programs={"plain": PLAIN})
    fleet.says("Ready")
    first = fleet.find(PLAIN)
    assert first is not None
    fleet.fills_its_pipe()

    first.kill()

    fleet.is_back(PLAIN, first.pid, 10)


def test_processes_are_restarted_after_the_log_folder_was_removed(up: Callable[..., Up]) -> None:
    fleet = up(programs={"plain": PLAIN})
    fleet.says("Ready")
    first = fleet.find(PLAIN)
    assert first is not None
    shutil.rmtree(fleet.home / "log")

    first.kill()

    fleet.is_back(PLAIN, first.pid, 10)
    assert (fleet.home / "log" / "plain.log").exists()


def test_a_failed_start_is_repeated_until_it_succeeds(up: Callable[..., Up]) -> None:
    """Nothing can be started while a file stands where the folder of logs should be."""
    fleet = up(programs={"plain": PLAIN})
    fleet.says("Ready")
    former = fleet.find(PLAIN)
    assert former is not None
    logs = fleet.home / "log"
    shutil.rmtree(logs)
    logs.touch()
    former.kill()
    fleet.says("plain could not be started")

    logs.unlink()

    fleet.is_back(PLAIN, former.pid, 10)


def test_a_fleet_home_stays_locked_until_the_valkey_of_a_killed_fleet_ends(tmp_path: Path) -> None:
    lock = Home(tmp_path).lock()
    program = Program("valkey", (sys.executable, "-c", PLAIN))
    process = SupervisedProcess(program, tmp_path / "valkey.log", [].append, pass_fds=[lock])
    process.start()
    try:
        wait_until(lambda: process.steady, 10, "the process to run")
        os.close(lock)  # as the kernel does for a process that is killed
        with pytest.raises(FleetRunning):
            Home(tmp_path).lock()
    finally:
        assert process.kill() == []
    home = Home(tmp_path)
    home.lock()
    home.unlock()


@contextmanager
def loading(answer: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers every PING with what ``answer`` gives and all else with consent; yields
    its address.
    """

    def said(command: bytes) -> bytes:
        if b"HELLO" in command:
            return b"%1\r\n$5\r\nproto\r\n:3\r\n"
        return answer() if b"PING" in command else b"+OK\r\n"

    def serve(connection: socket.socket) -> None:
        with connection:
            while asked := connection.recv(65536):
                # Every command is one array; no argument here begins with an asterisk.
                commands = [b"*" + part for part in asked.split(b"*")[1:]]
                connection.sendall(b"".join(said(one) for one in commands))

    def accept() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", free_port())) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def test_waiting_for_a_loading_redis_is_reported_once(up: Callable[..., Up]) -> None:
    ready = threading.Event()
    with loading(lambda: b"+PONG\r\n" if ready.is_set() else LOADING) as url:
        fleet = up(redis_url=url, programs={"plain": PLAIN})
        fleet.says("is loading its data")
        began = time.monotonic()
        # A Redis that gives no answer at all is not waited for.
        wait_until(lambda: time.monotonic() - began > 1.0, 5, "a second")
        assert fleet.process.poll() is None
        assert "Ready" not in fleet.text

        ready.set()

        assert fleet.says("Ready").count("is loading its data") == 1
        fleet.signal(signal.SIGTERM)
        assert fleet.code() == 0


def test_ctrl_c_works_while_redis_is_loading(up: Callable[..., Up]) -> None:
    with loading(lambda: LOADING) as url:
        fleet = up(redis_url=url, programs={"plain": PLAIN})
        fleet.says("is loading its data")
        fleet.family()

        fleet.signal(signal.SIGINT)

        assert fleet.code() == 0
        assert "Ready" not in fleet.text
        assert fleet.left() == []


def test_the_command_waits_for_a_loading_redis(tmp_path: Path) -> None:
    with loading(lambda: LOADING) as url:
        env = {
            **os.environ,
            "UNSTUCK_REDIS_URL": url,
            "UNSTUCK_WAREHOUSE": str(tmp_path),
            "PYTHONPATH": str(ROOT),
        }
        command = (sys.executable, "-m", "unstuck.cli", "up", "--home", str(tmp_path / "home"))
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert any("is loading its data" in line for line in lines)
            process.send_signal(signal.SIGTERM)
            assert "Stopped" in "".join(lines)
            assert process.wait() == 0


def test_the_logs_of_a_chatty_process_stay_bounded_while_it_runs(up: Callable[..., Up]) -> None:
    limit = 200_000
    fleet = up(programs={"chatty": CHATTY}, LOG_LIMIT=limit, ROTATE_EVERY=0.1)
    fleet.says("Ready")
    first = fleet.find("line {number")
    assert first is not None
    log = fleet.home / "log" / "chatty.log"

    def newest() -> int:
        lines = log.read_bytes().splitlines()[:-1]  # the last one may be half written
        return int(lines[-1].split()[1]) if lines else 0

    largest = 0

    def size(part: Path) -> int:
        try:
            return part.stat().st_size
        except FileNotFoundError:  # another part has just taken its place
            return 0

    def much() -> bool:
        nonlocal largest
        largest = max(largest, sum(map(size, log.parent.glob("chatty.log*"))))
        return newest() * 15 > 5 * limit

    wait_until(much, 60, "five times the limit to be printed")

    assert (
        largest < 4 * limit
    )  # the log, and the older part: each at most as much as the log may hold
    wait_until(log.with_name("chatty.log.1").exists, 10, "the older part")
    text = log.read_bytes()
    assert b"\0" not in text  # it appends: a file that was cut short has no hole
    assert first.is_running()
    now = newest()
    wait_until(lambda: newest() > now, 5, "newer lines")
