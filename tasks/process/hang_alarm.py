"""The hang alarm: the kernel kills a prefork child that hangs while it holds no attempt.

The alarm runs between the wait for a job and the attempt: at the start and end of the child, in a
claim, in the clean up after an attempt. During an attempt the watchdog counts the time.
"""

from __future__ import annotations

import signal
from typing import Any

_handler_of_steps: Any = None  # a step's handler of SIGALRM, which later steps get back
_seconds: float | None = None  # None: this process is no child of a pool, and has no alarm


def install(seconds: float) -> None:
    """Give this process an alarm of ``seconds``, and start it."""
    global _seconds
    _seconds = seconds
    start()


def start(seconds: float | None = None) -> None:
    """Kill this process in ``seconds``, unless the alarm is canceled or restarted.

    For the main thread.

    Args:
        seconds: None: those of ``install``.
    """
    global _handler_of_steps
    if _seconds is None:
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _handler_of_steps = _handler_of_steps if before in (None, signal.SIG_DFL) else before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, _seconds if seconds is None else seconds)


def cancel() -> None:
    """Stop the alarm; a step may use SIGALRM from now on."""
    if _seconds is None:
        return
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if _handler_of_steps is not None:
        signal.signal(signal.SIGALRM, _handler_of_steps)
