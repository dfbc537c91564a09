"""One process of the local fleet, started again whenever it ends.

A child leads its own session, so that Ctrl-C in the terminal reaches the foreground process alone, and so that
everything it starts can be found and ended. A child must never go on before the guard knows its session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from unstuck.coordinator.local.log_rotation import LOG_LIMIT, keep_small
from unstuck.coordinator.local.reaper import Guard, Session, end, members

STEADY = 30.0  # seconds; a child that lived this long has started well, and its next death counts as the first
SETTLED = 1.0  # seconds
FIRST_DELAY, LONGEST_DELAY = 0.5, 15.0  # seconds

# The process waits for one line before it becomes the program. If the foreground process is killed between starting it
# and naming it to the guard, the line never comes and the process leaves.
_AFTER_THE_WORD = 'read -r go && exec "$@" </dev/null'


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. ``node`` is the Celery node name that answers a ping once the process is ready, if it has one."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None


def restart_delay(deaths: int) -> float:
    """Seconds to wait before a child is started again after ``deaths`` deaths in a row."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(deaths - 1, 10)))


def how_it_ended(code: int) -> str:
    """The exit code of a process, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Child:
    """A supervised process.

    Args:
        command: what to run; its output goes to ``log``, which is appended to.
        guard: told of every session before the process goes on.
        say: takes one line for the person at the terminal; must not raise.
        log_limit: bytes of the log; see ``bounded.keep_small``.
    """

    def __init__(
        self, command: Command, log: Path, guard: Guard, say: Callable[[str], None], log_limit: int = LOG_LIMIT
    ) -> None:
        self.command, self.log, self._log_limit = command, log, log_limit
        self.deaths = 0  # in a row
        self._guard, self._say = guard, say
        self._stopping = threading.Event()
        self._mutex = threading.Lock()  # no process is started once stop() has been called
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._sessions: list[Session] = []
        self._keeper = threading.Thread(target=self._keep, name=f"keep-{command.name}", daemon=True)

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def pid(self) -> int | None:
        """The process's id; None while it is down."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def settled(self) -> bool:
        """True once it has lived for a second; a program that cannot be imported does not get that far."""
        return self.pid is not None and time.monotonic() - self._started > SETTLED

    def start(self) -> None:
        self._spawn()
        self._keeper.start()

    def stop(self) -> None:
        """Ask it to end (SIGTERM), and start it no more. Returns at once."""
        with self._mutex:
            self._stopping.set()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def gone(self, timeout: float) -> bool:
        """True once the stopped process and all that it started have ended, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._keeper.join(max(0.0, timeout))
        while not self._keeper.is_alive():
            if not members(self._sessions):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return False

    def kill(self) -> list[int]:
        """SIGKILL to the process and to all that it ever started; returns the pids that could not be ended."""
        with self._mutex:
            self._stopping.set()
        left = end(self._sessions)
        self._keeper.join(5.0)
        return [process.pid for process in left]

    def look_after(self) -> None:
        """To be called now and then: keeps the log small, and forgets former sessions in which nothing lives any more.

        Raises:
            OSError, psutil.Error: something could not be looked at; try again later.
        """
        keep_small(self.log, self._log_limit)
        with self._mutex:
            if len(self._sessions) > 1 and not self._stopping.is_set():
                self._forget_empty()

    def last_words(self, lines: int = 12) -> str:
        """The end of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 8192))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(its log cannot be read: {error})"

    def _spawn(self) -> None:
        with self._mutex:
            if self._stopping.is_set():
                return
            self._forget_empty()
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _AFTER_THE_WORD, self.name, *self.command.argv],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.command.env},
                    start_new_session=True,
                )
            assert process.stdin is not None
            try:
                self._sessions.append(self._guard.watch(process.pid))
                process.stdin.write(b"go\n")
                process.stdin.close()
            except BrokenPipeError:
                pass  # it is dead already; the keeper sees that and says so
            except BaseException:
                process.kill()  # it waits for the word still, and is not known to the guard
                process.wait()
                raise
            self._started = time.monotonic()
            self._process = process

    def _forget_empty(self) -> None:
        """Its former sessions are kept as long as something lives in them: a runner outlives a killed Celery parent
        until its watchdog has noticed. Later, their numbers may be those of strangers, whom the guard must spare."""
        kept = [session for session in self._sessions if members([session])]
        self._guard.forget([session for session in self._sessions if session not in kept])
        self._sessions = kept

    def _keep(self) -> None:
        """Ends with ``stop`` alone: a child whose keeper has gone would never be started again."""
        while self._process is not None:
            pid, code = self._process.pid, self._process.wait()
            if self._stopping.is_set():
                return
            self.deaths = 1 if time.monotonic() - self._started > STEADY else self.deaths + 1
            what = f"(pid {pid}) {how_it_ended(code)}; it is started again"
            while what:
                delay = restart_delay(self.deaths)
                self._say(f"{self.name} {what} in {delay:g} s. Its log: {self.log}")
                if self._stopping.wait(delay):
                    return
                what = self._spawned()

    def _spawned(self) -> str:
        """Try to start it; returns "" or what to say: no memory, no process to be had, no folder for the log."""
        try:
            self._spawn()
        except (OSError, psutil.Error) as error:
            self.deaths += 1
            return f"could not be started ({error}); it is tried again"
        return ""
