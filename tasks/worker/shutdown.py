"""Shut a worker down: every stop is Celery's warm one, with a limit that the kernel enforces.

Celery's own signals are not used: its cold shutdown may end a runner that is just handing its
attempt back (measured: 1 of 13), and its warm one sometimes hangs (3 of 19). Watchdogs end the
attempts; the main process never touches a runner.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import Any

from unstuck.tasks.log_lines import one_line
from unstuck.tasks.process.shutdown_flag import ShutdownFlag, ShutdownLevel
from unstuck.tasks.settings import Settings, settings
from unstuck.tasks.worker.idle_slots import IdleSlots


class MainProcess:
    """The main process of a worker, when it is told to stop.

    Attributes:
        flag: tells the watchdogs of its runners.
        idle_slots: of its runners.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        """``name``: of the worker, as people know it."""
        self.flag = ShutdownFlag.create()
        self.idle_slots = IdleSlots()
        self._settings = settings
        self._name = name
        self._pid = os.getpid()
        self._exit_code = os.EX_OK

    def set_signal_handlers(self) -> None:
        """TERM and INT stop this worker; QUIT, or a second of any, stops it now.

        For the main thread.
        """
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # The alarm of a worker that SIGHUP has just replaced by this one: it passes through exec.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def stop(self, level: ShutdownLevel) -> None:
        """Let the watchdogs know, and set a limit to this process.

        May come again, and from a signal handler.
        """
        if os.getpid() != self._pid:
            return  # a child that was forked just now, and has not set its own handlers yet
        if level <= self.flag.level:
            return
        self.flag.raise_to(level)
        self._limit(self._settings.stop_within(at_once=level is ShutdownLevel.STOP_NOW))
        # Not through logging: the signal may have come while this very thread held a lock of it.
        # Nobody may listen any more, which must not keep the worker from stopping.
        with suppress(OSError):
            announcement = self._announcement(level)
            as_set = (
                one_line("json", __name__, "WARNING", announcement)
                if self._settings.log == "json"
                else f"\n{announcement}"
            )
            os.write(2, f"{as_set}\n".encode())

    def give_up(self) -> None:
        """Stop this worker with another exit code than a normal stop. From any thread.

        If the main thread hangs, in its own shutdown perhaps, the alarm ends it.
        """
        from celery.worker import state

        self._exit_code = os.EX_SOFTWARE
        self.stop(ShutdownLevel.STOP)
        state.should_stop = self._exit_code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        from celery import signals
        from celery.worker import state

        try:
            again = self.flag.level is not ShutdownLevel.WORK
            self.stop(
                ShutdownLevel.STOP_NOW if again or number == signal.SIGQUIT else ShutdownLevel.STOP
            )
        finally:
            # Requests a warm shutdown at the next turn of the worker's loop.
            state.should_stop = self._exit_code
        # As Celery's own handler does.
        name = signal.Signals(number).name
        signals.worker_shutting_down.send(
            sender=self._name, sig=name, how="Warm", exitcode=os.EX_OK
        )

    def _limit(self, seconds: float) -> None:
        """End this process by a kernel alarm after ``seconds``, even if Python hangs."""
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, min(left, seconds) if left else seconds)

    def _announcement(self, level: ShutdownLevel) -> str:
        if level is ShutdownLevel.STOP_NOW:
            grace = f"{self._settings.cancel_grace:g}s"
            return (
                f"{self._name} stops now: what runs is handed back, and killed if it has not "
                f"left after {grace}."
            )
        grace = f"{self._settings.drain_grace:g}s"
        return (
            f"{self._name} was told to stop and takes no new work. What runs has {grace} to end "
            "(UNSTUCK_DRAIN_GRACE); then it is handed back. TERM again, or QUIT, hands it back now."
        )


_main_process: MainProcess | None = None


def become_main_process(name: Any) -> MainProcess:
    """Make this process the main process of the worker ``name``.

    Before it forks its first runner.
    """
    global _main_process
    _main_process = MainProcess(str(name), settings())
    return _main_process


def this_worker() -> MainProcess:
    """Return the `MainProcess` of this worker, in that process or in a forked child."""
    assert _main_process is not None, (
        "the pool of a worker makes it before it forks and before Celery listens"
    )
    return _main_process
