"""The fuse: a child of the pool that does not get on is ended by the kernel.

A child waits for a job, which takes as long as it takes; or it holds an attempt, and then the watchdog counts its time.
Whatever lies between, its start, its end, a claim, the cleaning up, a line in a log, has a time to be over, and nobody
else looks at it: Celery's own limit of a start does not hold for a worker's first children, and a JVM may never stop.
The watchdog ends what the child leaves behind, and the worker starts another.
"""

from __future__ import annotations

import signal
from typing import Any

_theirs: Any = None  # what a step wants done at SIGALRM, kept for the next one while the fuse is lit
_time: float | None = None  # seconds; None: this process is no child of a pool, and nothing here does anything


def lay(seconds: float) -> None:
    """From now on this process has a fuse, of ``seconds``, and it is lit."""
    global _time
    _time = seconds
    light()


def light(seconds: float | None = None) -> None:
    """This process is ended in ``seconds``, unless the fuse is put out or lit anew. For the main thread.

    Args:
        seconds: None: those of ``lay``.
    """
    global _theirs
    if _time is None:
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _theirs = _theirs if before in (None, signal.SIG_DFL) else before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, _time if seconds is None else seconds)


def put_out() -> None:
    """This process may take its time again, and a step may use SIGALRM."""
    if _time is None:
        return
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if _theirs is not None:
        signal.signal(signal.SIGALRM, _theirs)
