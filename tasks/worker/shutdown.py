"""The shutdown of a worker, in its main process: every stop is Celery's warm one, with a limit that the kernel keeps.

Celery's own signals are not used: its cold shutdown may end a runner that is just handing its attempt back (measured: 1
of 13), and its warm one sometimes hangs (3 of 19). Watchdogs end the attempts; the main process never touches a runner.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

from unstuck.tasks.process.shutdown_flag import ShutdownFlag, ShutdownLevel
from unstuck.tasks.settings import Settings, settings

if TYPE_CHECKING:
    # It looks at processes, with a package that a coordinator need not have.
    from unstuck.tasks.worker.idle_slots import IdleSlots


class Stopping:
    """What the main process of a worker does when it is told to stop."""

    def __init__(self, flag: ShutdownFlag, settings: Settings, name: str) -> None:
        """``name``: of the worker, as people know it."""
        self.flag = flag
        self.idle_slots: IdleSlots | None = None  # of its runners, once there are any
        self._settings = settings
        self._name = name
        self._pid = os.getpid()
        self._exit_code = os.EX_OK

    def take_signals(self) -> None:
        """TERM and INT stop this worker; QUIT, or a second of any, stops it now. For the main thread."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # The alarm of a worker that SIGHUP has just replaced by this one: it passes through exec.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def stop(self, word: ShutdownLevel) -> None:
        """Let the watchdogs know, and set a limit to this process. May come again, and from a signal handler."""
        if os.getpid() != self._pid:
            return  # a child that was forked just now, and has not set its own handlers yet
        before = self.flag.level
        if word <= before:
            return
        self.flag.raise_to(word)
        self._limit(self._settings.stop_within(at_once=word is ShutdownLevel.STOP_NOW))
        _tell(self._words(word))

    def give_up(self) -> None:
        """End this worker as if it was told to, with an exit code that says otherwise. From any thread.

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
            self.stop(ShutdownLevel.STOP_NOW if again or number == signal.SIGQUIT else ShutdownLevel.STOP)
        finally:
            state.should_stop = self._exit_code  # a warm shutdown, at the next turn of the worker's loop
        # Celery's own handler sends it; whoever listens should not miss it.
        name = signal.Signals(number).name
        signals.worker_shutting_down.send(sender=self._name, sig=name, how="Warm", exitcode=os.EX_OK)

    def _limit(self, seconds: float) -> None:
        """Let the kernel end this process after ``seconds``, also when Python hangs; never later than it would."""
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, min(left, seconds) if left else seconds)

    def _words(self, word: ShutdownLevel) -> str:
        if word is ShutdownLevel.STOP_NOW:
            grace = f"{self._settings.cancel_grace:g}s"
            return f"{self._name} stops now: what runs is handed back, and killed if it has not left after {grace}."
        grace = f"{self._settings.drain_grace:g}s"
        return (
            f"{self._name} was told to stop and takes no new work. What runs has {grace} to end (UNSTUCK_DRAIN_GRACE); "
            "then it is handed back. TERM again, or QUIT, hands it back now."
        )


def _tell(line: str) -> None:
    """Not through logging: the signal may have come while this very thread held a lock of it."""
    try:
        os.write(2, f"\n{line}\n".encode())
    except OSError:
        return  # nobody listens any more, which must not keep the worker from stopping


_stopping: Stopping | None = None


def begin(name: Any) -> Stopping:
    """This process becomes the main process of the worker ``name``. Before it forks its first runner."""
    global _stopping
    _stopping = Stopping(ShutdownFlag.create(), settings(), str(name))
    return _stopping


def this_worker() -> Stopping | None:
    """The end of the worker whose main process this is; None if it is none."""
    return _stopping


def shutdown_flag_of_this_worker() -> ShutdownFlag | None:
    """The shutdown flag of the worker that this process is, or was forked from; None if there is none."""
    return None if _stopping is None else _stopping.flag
