"""One process of the local fleet, which is restarted whenever it ends.

The process leads its own session, so Ctrl-C in the terminal reaches the foreground process only.
On Linux the kernel kills the process when the foreground process dies.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from unstuck.local.home import listens
from unstuck.local.parent_death import tied
from unstuck.tasks.process.tree import Tree, describe_exit

STABLE_AFTER = 30.0  # seconds; the next death of a process that lived this long counts as its first
STEADY_AFTER = 1.0  # seconds
FIRST_DELAY, LONGEST_DELAY = 0.5, 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run.

    Attributes:
        node: the Celery node name that answers a ping once the process is ready; None for none.
        port: the port of the loopback address at which it listens once it is ready; None for none.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    port: int | None = None


def restart_delay(deaths: int) -> float:
    """Return the seconds to wait before a restart after ``deaths`` deaths in a row."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(deaths - 1, 10)))


class SupervisedProcess:
    """A process that is restarted whenever it ends.

    Args:
        program: what to run; its output is appended to ``log``.
        say: receives one line for the user; must not raise.
        pass_fds: file descriptors that the process inherits.
    """

    def __init__(
        self, program: Program, log: Path, say: Callable[[str], None], pass_fds: Sequence[int] = ()
    ) -> None:
        self.program, self.log = program, log
        self.deaths = 0  # in a row
        self._say, self._pass_fds = say, pass_fds
        self._stopping = threading.Event()
        self._restarting = False  # it was signaled, and not restarted since
        self._mutex = threading.Lock()  # nothing is started once stop() was called
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._tree: Tree | None = None
        self._supervisor = threading.Thread(
            target=self._supervise, name=f"supervise-{program.name}", daemon=True
        )

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int | None:
        """The process id; None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def steady(self) -> bool:
        """Whether it has lived for a second, which a program that cannot be imported does not."""
        return self.pid is not None and time.monotonic() - self._started > STEADY_AFTER

    @property
    def up(self) -> bool:
        """Whether it is steady, and listens if it has a port."""
        return self.steady and (self.program.port is None or listens(self.program.port))

    def start(self) -> None:
        self._supervisor.start()

    def stop(self) -> None:
        """Send SIGTERM, and do not restart it. Returns at once."""
        with self._mutex:
            self._stopping.set()
            if self._process is not None and self._process.returncode is None:
                # Before the signal: the descendants of a dead process are unknown.
                with suppress(OSError, psutil.Error):
                    self._tree = self._tree or Tree(psutil.Process(self._process.pid))
                    self._tree.remember()
                self._process.terminate()

    def restart(self) -> None:
        """Send SIGTERM, and restart it when it has ended. Returns at once.

        It is not signaled again before the restart: a worker that gets a second SIGTERM hands back
        its work at once.
        """
        with self._mutex:
            process = self._process
            if (
                self._restarting
                or self._stopping.is_set()
                or process is None
                or process.returncode is not None
            ):
                return
            self._restarting = True
            process.terminate()

    @property
    def gone(self) -> bool:
        """Whether the stopped process and all its descendants have ended."""
        return not self._supervisor.is_alive() and (self._tree is None or not self._tree.living())

    def kill(self) -> list[int]:
        """Kill the process and its descendants. Returns the pids that could not be killed."""
        self.stop()
        if self._tree is None and self._process is not None:
            self._process.kill()  # its tree could not be read
        left = self._tree.kill() if self._tree is not None else []
        self._supervisor.join(5.0)
        return [process.pid for process in left]

    def log_tail(self, lines: int = 12) -> str:
        """Return the end of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 8192))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(its log cannot be read: {error})"

    def _supervise(self) -> None:
        """Start the process, wait for its end, and restart it.

        The kernel kills the process if this thread ends.
        """
        while True:
            try:
                process = self._spawn()
            except OSError as error:  # no memory, too many processes, or no folder for the log
                self.deaths += 1
                what = f"could not be started ({error}); it is started again"
            else:
                code = process.wait() if process is not None else 0
                if self._stopping.is_set() or process is None:
                    return
                if self._restarting:
                    continue
                self.deaths = (
                    1 if time.monotonic() - self._started > STABLE_AFTER else self.deaths + 1
                )
                what = f"(pid {process.pid}) {describe_exit(code)}; it is started again"
            delay = restart_delay(self.deaths)
            self._say(f"{self.name} {what} in {delay:g} s. Its log: {self.log}")
            self._stopping.wait(delay)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """Start the process. Returns None once stop() was called."""
        with self._mutex:
            if self._stopping.is_set():
                return None
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    tied(self.program.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.program.env},
                    start_new_session=True,
                    pass_fds=self._pass_fds,
                )
            self._started = time.monotonic()
            self._restarting = False
            return self._process
