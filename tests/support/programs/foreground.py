"""A foreground process as ``unstuck up`` is one, with stand-ins for the Celery programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from tests.support.servers import free_port, wait_until

FOREGROUND = """
import fcntl, json, os, sys, termios
if os.isatty(1):
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)  # its terminal, as a window or ssh has one
from unstuck.local import local_fleet as fleet
from unstuck.coordinator.errors import FleetFailed, FleetRunning
from unstuck.local.process import Program

told = json.loads(sys.argv[1])
programs = told.pop("programs")
for name in ("LOG_LIMIT", "ROTATE_EVERY"):
    setattr(fleet, name, told.pop(name, getattr(fleet, name)))
if programs is not None:
    programs = [Program(name, (sys.executable, "-c", code)) for name, code in programs.items()]
try:
    sys.exit(fleet.LocalFleet(programs=programs, **told).run())
except (FleetFailed, FleetRunning) as error:
    print(error, flush=True)
    sys.exit(2)
"""
PLAIN = "import time; time.sleep(1000)"
# Ignores SIGTERM, and has a child in a process group of its own and another in a session of its
# own.
IGNORES_SIGTERM = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(1000)"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("started", flush=True)
time.sleep(1000)
"""


class Up:
    """A foreground process, as ``unstuck up`` is one, with all that it starts."""

    def __init__(
        self, folder: Path, terminal: Literal["file", "pipe", "tty"] = "file", **told: Any
    ) -> None:
        told = {"home": str(folder / "home"), "programs": {}, "grace": 1.0, **told}
        self.home = Path(told["home"])
        self.reader, self._writer = self._open(terminal, folder)
        self._read = b""
        env = {key: value for key, value in os.environ.items() if not key.startswith("UNSTUCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, json.dumps(told)],
            stdout=self._writer,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**env, "UNSTUCK_PREFIX": "up", "UNSTUCK_WAREHOUSE": str(folder / "warehouse")},
            start_new_session=True,
        )
        self.seen: dict[int, psutil.Process] = {}

    @staticmethod
    def _open(terminal: str, folder: Path) -> tuple[int, int]:
        """Where we read and where it writes."""
        if terminal == "file":
            path = folder / f"out-{free_port()}.txt"
            out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            return os.open(path, os.O_RDONLY), out
        reader, out = os.pipe() if terminal == "pipe" else pty.openpty()
        os.set_blocking(reader, False)
        return reader, out

    def loses_its_terminal(self) -> None:
        """The window is closed (which sends SIGHUP), or the process at the other end of the pipe
        has left.
        """
        self.text  # noqa: B018 - what was said so far stays known
        os.close(self.reader)
        self.reader = -1

    def fills_its_pipe(self) -> None:
        """Nobody reads, so that its next write would wait."""
        os.set_blocking(self._writer, False)
        with suppress(BlockingIOError):
            while os.write(self._writer, b"." * 4096):
                continue
        os.set_blocking(self._writer, True)  # it is the same open file that the fleet writes to

    def close(self) -> None:
        """Give back what this test holds open; the fleet itself is ended by the fixture."""
        for number in {self.reader, self._writer} - {-1}:
            os.close(number)

    def says(self, text: str, timeout: float = 60.0) -> str:
        """Wait until the terminal shows ``text``; returns all that it shows."""

        def said() -> str:
            ended = self.process.poll() is not None
            shown = self.text
            assert text in shown or not ended, f"it ended without saying {text!r}: {shown}"
            return shown if text in shown else ""

        return wait_until(said, timeout, f"{text!r} on the terminal")

    @property
    def text(self) -> str:
        try:
            while self.reader >= 0 and (more := os.read(self.reader, 65536)):
                self._read += more
        except OSError:  # nothing to read now, or the other end of a terminal has left
            return self._read.decode()
        return self._read.decode()

    @property
    def own_log(self) -> str:
        """What it wrote to the file that has its own words."""
        log = self.home / "log" / "up.log"
        return log.read_text() if log.exists() else ""

    def __repr__(self) -> str:
        return f"<Up: {self.text}>"

    def family(self) -> dict[int, psutil.Process]:
        """All processes below the foreground one; remembered, so that a test can ask later what is
        left.
        """
        now = {p.pid: p for p in psutil.Process(self.process.pid).children(recursive=True)}
        self.seen.update(now)
        return now

    def left(self) -> list[str]:
        """Those of the processes ever seen that still live."""
        lines = []
        for process in self.seen.values():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            except psutil.NoSuchProcess:
                continue
        return lines

    def is_gone(self, timeout: float = 15.0) -> None:
        """Wait until nothing lives of all that was ever seen."""
        wait_until(lambda: not self.left(), timeout, "all processes of the fleet to end")

    def is_back(self, text: str, former: int, timeout: float = 60.0) -> None:
        """Wait until another process stands where ``former`` stood."""
        wait_until(
            lambda: (now := self.find(text)) and now.pid != former, timeout, f"{text} to come back"
        )

    def is_ready_again(self, name: str) -> None:
        """Wait until Celery has said twice in the log of ``name`` that it is ready."""
        log = self.home / "log" / f"{name}.log"
        wait_until(lambda: log.read_text().count(" ready.") >= 2, 60, f"{name} to be ready again")

    def find(self, text: str) -> psutil.Process | None:
        """The process that the foreground itself has started and whose command line contains
        ``text``.
        """
        for process in psutil.Process(self.process.pid).children():
            try:
                # Not while it is about to become the program.
                if text in (line := " ".join(process.cmdline())) and "parent_death.py" not in line:
                    return process
            except psutil.Error:
                continue
        return None

    def address(self) -> str:
        return (self.home / "redis.url").read_text().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait()
