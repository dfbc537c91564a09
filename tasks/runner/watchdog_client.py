"""The leash: the runner's end of the pipes to its watchdog.

It says what the runner holds and hears what it should do. A watchdog that dies is replaced at once, and the new
one is told what is held and how long its clocks have run; if that fails, or is needed again and again, the runner ends
itself, because a runner without a watchdog holds a lease that nobody renews and hears of no cancel. A watchdog that
stays stopped is no better than a dead one: it is killed first, so there are never two of one runner.

No thread and no line of it may fail quietly: a runner that lived on after that would take hints, and lose each. It acts
first and logs afterwards, aside and under no lock: the log may hang.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

import psutil

from unstuck.tasks.process.deadlines import run_with_deadline
from unstuck.tasks.process.shutdown_flag import ShutdownFlag
from unstuck.tasks.process.standstill import LOOKS, Standstill
from unstuck.tasks.process.tree import Seen, end_strays, look
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.watchdog.policy import Clock, Order

log = logging.getLogger(__name__)

_MAX_RESTARTS = 5  # within a minute
_PROGRESS_EVERY = 0.5  # seconds
_UNWATCHED = "and a runner without a watchdog keeps no lease and hears of no cancel, so "
_RESTART_AFTER = 0.05  # of a clock's time: sooner it is not begun anew


class WatchdogClient:
    """Starts a watchdog for this process and keeps one alive.

    ``on_order`` is called from a thread of the leash with the token it is for, the order, and for a timeout the
    failure that it is. Every watchdog sees ``sign``, the stop sign of the worker. One that is seen stopped for
    ``patience`` seconds is replaced.
    """

    def __init__(
        self,
        hello: dict[str, Any],
        on_order: Callable[[Token, Order, Failure | None], None],
        shutdown_flag: ShutdownFlag | None = None,
        *,
        patience: float,
    ) -> None:
        self._passed = () if shutdown_flag is None else (shutdown_flag.read_fd,)
        self._pid = os.getpid()
        flag = shutdown_flag and shutdown_flag.read_fd
        self._hello = {"op": "hello", "pid": self._pid, "shutdown_flag": flag, **hello}
        self._on_order = on_order
        self._patience = patience
        self._lock = threading.RLock()
        self._hold: dict[str, Any] | None = None
        self._clocks: dict[str, Clock] = {}
        self._progress = ""
        self._progress_at = 0.0
        self._restarts: list[float] = []
        self._ending = False
        self._start()

    @property
    def watchdog_pid(self) -> int:
        """The pid of the watchdog; of the next one, if that is just being started."""
        with self._lock:
            return self._process.pid

    def taken(self) -> None:
        """This runner has taken a hint, whatever comes of it. For people, who see by it that it is not deaf."""
        with self._lock:
            self._hello["taken"] = time.time()
            self._say_if_read({"op": "taken", "at": self._hello["taken"]})

    def hold(self, token: Token) -> None:
        """From now on the watchdog keeps the lease of ``token`` and acts in the runner's stead if it dies."""
        with self._lock:
            self._clocks, self._progress = {}, ""
            self._hold = {"op": "hold", "token": str(token), "log": None, "since": time.time()}
            self._hello["claimed"] = self._hold["since"]  # for a watchdog that takes over while nothing is held
            self._say(self._hold)

    def note_in(self, path: str | None) -> None:
        """The file for the watchdog's last words about the attempt that is held: its log, on this machine."""
        with self._lock:
            if self._hold is not None:
                self._hold["log"] = path
            self._say({"op": "log", "path": path})

    @contextmanager
    def clock(self, code: str, seconds: float | None, step: str = "") -> Iterator[None]:
        """The runner is told, and after the grace killed, if the block takes longer than ``seconds``; None: no end.

        The failure gets ``code``; ``step`` says which step it is, or what else it is that takes so long.
        """
        if seconds is None:
            yield
            return
        with self._lock:
            clock = self._clocks[code] = Clock(code, seconds, time.monotonic(), step)
            self._say_clock(clock)
        try:
            yield
        finally:
            with self._lock:
                self._clocks.pop(code, None)
                self._say({"op": "clock", "code": code, "seconds": None})

    def restart_clock(self, code: str) -> None:
        """The clock ``code``, if it runs, begins anew: what it waits for goes on. Cheap, however often it is called."""
        with self._lock:
            clock = self._clocks.get(code)
            now = time.monotonic()
            if clock is not None and now - clock.began >= clock.seconds * _RESTART_AFTER:
                self._clocks[code] = replace(clock, began=now)
                self._say_clock(self._clocks[code])

    def progress(self, text: str, *, now: bool = False) -> None:
        """``text`` (JSON) goes with the next renewal. Dropped when the last was sent a moment ago, unless ``now``."""
        with self._lock:
            moment = time.monotonic()
            if not now and moment - self._progress_at < _PROGRESS_EVERY:
                return
            self._progress, self._progress_at = text, moment
            self._say_if_read({"op": "progress", "text": text})

    def remark(self, text: str) -> None:
        """``text`` goes with the watchdog's last words about the attempt, if this process dies of it."""
        with self._lock:
            self._say_if_read({"op": "remark", "text": text})

    def give_up(self, why: str) -> NoReturn:
        """End this runner, whose watchdog lives and says ``why`` of the attempt that is held."""
        with suppress(Exception):  # what is broken may be what is needed for it
            self.remark(why)
        self._give_up(why, so="so ")

    def release(self) -> None:
        """The attempt has ended; the lease is nobody's concern any more."""
        with self._lock:
            self._hold, self._clocks = None, {}
            self._say({"op": "release"})

    def end(self) -> None:
        """Let the watchdog outlive this process just long enough to end what it leaves behind."""
        with self._lock:
            self._ending = True

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unstuck.tasks.watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal to the runner's group or terminal must not reach it
            bufsize=0,
            pass_fds=self._passed,
        )
        self._say(self._hello)
        if self._hold is not None:
            self._say(self._hold)
            for clock in self._clocks.values():
                self._say_clock(clock)
            if self._progress:
                self._say({"op": "progress", "text": self._progress})
        # Found before anybody can have waited for it: until then its pid is given to nobody else.
        process, seen, ended = self._process, psutil.Process(self._process.pid), threading.Event()
        threading.Thread(target=self._hear, args=(process, ended), name="watchdog", daemon=True).start()
        threading.Thread(target=self._mind, args=(process, seen, ended), name="watchdog seen", daemon=True).start()

    def _say_clock(self, clock: Clock) -> None:
        elapsed = time.monotonic() - clock.began
        self._say({"op": "clock", "code": clock.code, "seconds": clock.seconds, "elapsed": elapsed, "step": clock.step})

    def _say_if_read(self, line: dict[str, Any]) -> None:
        """A watchdog that does not read (it is stopped) must not block the runner over a number for people."""
        assert self._process.stdin is not None
        # Not select(), which refuses descriptors from 1024 on: a step may have had a thousand when this pipe was made.
        pipe = select.poll()
        pipe.register(self._process.stdin, select.POLLOUT)
        if pipe.poll(0):
            self._say(line)

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
        except BrokenPipeError:
            # It has just died. The thread that hears from it starts the next one, repeats what is held, and logs it.
            return
        except OSError as error:
            if os.getpid() != self._pid:
                raise  # a child that the step forked, and that closed what it had: the runner's pipe is whole
            # The step has closed our end (libraries that make daemons close all there is). It stays so.
            self._give_up(f"the pipe to the watchdog {self._process.pid} is broken: {_said(error)}")

    def _mind(self, process: subprocess.Popen[bytes], seen: psutil.Process, ended: threading.Event) -> None:
        """Kill a watchdog that stays stopped; ``_hear`` then starts the next one, as after any other death.

        It takes no lock: whoever holds that may be waiting for the stopped one to read what is in its pipe.
        """
        every, standstill = self._patience / LOOKS, Standstill()
        while not ended.wait(every):
            try:
                state = look(seen)
            except OSError as error:  # the step has every descriptor; it may give some back
                said = "the watchdog %d cannot be looked at: %s"
                run_with_deadline(log.warning, said, process.pid, error, seconds=0)
                state = Seen.ALIVE
            standstill = standstill.after(state, time.monotonic(), within=2 * every)
            if standstill.seconds >= self._patience:
                process.kill()
                log.warning("the watchdog %d was stopped for %.1fs and was killed", process.pid, standstill.seconds)
                return

    def _hear(self, process: subprocess.Popen[bytes], ended: threading.Event) -> None:
        """Pass its orders on until it has died, and replace it."""
        try:
            self._pass_on(process)
            status = process.wait()
            ended.set()
            if self._replace(process, status):
                said = "the watchdog %d died (%d); another one took over"
                run_with_deadline(log.warning, said, process.pid, status)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else hears this watchdog or follows it
            self._give_up(f"the watchdog {process.pid} cannot be heard any more: {_said(error)}")

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                heard = json.loads(line)
                failure = Failure.from_dict(heard["failure"]) if "failure" in heard else None
                self._on_order(Token.parse(heard["token"]), Order(heard["order"]), failure)

    def _replace(self, process: subprocess.Popen[bytes], status: int) -> bool:
        """Start the next one; False if none is wanted."""
        with self._lock:
            if self._ending or process is not self._process:
                return False
            now = time.monotonic()
            self._restarts = [at for at in self._restarts if now - at < 60] + [now]
            if len(self._restarts) > _MAX_RESTARTS:
                self._give_up(f"the watchdog died {len(self._restarts)} times within a minute, at last with {status}")
            assert process.stdin is not None
            process.stdin.close()
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                # No descriptor, process, thread or memory is left, or no Python is where ours was.
                self._give_up(f"the watchdog {process.pid} died, and no other can be started: {_said(error)}")
            return True

    def _give_up(self, why: str, so: str = _UNWATCHED) -> NoReturn:
        """End this runner, with all that it started. Celery starts another.

        A watchdog that still lives reports the attempt lost, at once; without one its lease lapses.
        """
        try:
            try:
                # Without a wait: a step whose JVM is gone would report a failure of its own.
                end_strays(lambda pid: pid == self._process.pid, wait=0)
                what = "with all that it started"
            except OSError as error:
                what = f"with its process group (what else it started cannot be looked up: {error})"
            said = "%s, %s%d ends itself %s; the worker starts another, and what it ran is given out again"
            run_with_deadline(log.critical, said, why, so, self._pid, what)
        finally:
            os.killpg(0, signal.SIGKILL)
        raise AssertionError("a process outlives SIGKILL")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
