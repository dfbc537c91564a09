"""How slow the machine is now, so that a limit in seconds fails no test because the machine is
busy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SLOWNESS = "TEST_SLOWNESS"  # in the environment: how slow the machine was when the tests began
WORK = (
    "import asyncio, email.message, http.client, logging.config, multiprocessing.pool, "
    "unittest.mock, xml.sax"
)
# Seconds that a process takes for this work on the idle machine for which the limits were written.
IDLE = 0.15


def slowness() -> float:
    """How many times as long as on that machine the work takes now; at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", WORK], check=True)
    return max(1.0, (time.monotonic() - began) / IDLE)


def seconds(idle: float) -> float:
    """A timeout for what takes at most ``idle`` seconds on an idle machine: three times that, and
    longer on a machine that was busy when the tests began. Only where a call wants one: whatever
    hangs is ended with its test.
    """
    return 3 * idle * float(os.environ[SLOWNESS])


def waited(task: str = "thread-self") -> float:
    """Seconds for which the kernel has let ``task`` wait for a processor so far; 0 where it does
    not say.

    ``task``: the calling thread; or a process id, for the main thread of that process.
    """
    try:
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


class Limit:
    """A limit of ``seconds`` of an idle machine from now on; the machine is measured only when they
    are over.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: ``time.process_time`` counts the processor time of this process alone."""
        self._seconds = self._allowed = seconds
        self._clock = clock
        self._began = clock()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    def __str__(self) -> str:
        return f"{self.elapsed:.1f} s elapsed, {self._allowed:.1f} s allowed on this machine"

    @property
    def kept(self) -> bool:
        """False when more time is over than the machine needs, as slow as it is, for ``seconds`` of
        an idle one.
        """
        elapsed = self.elapsed
        if elapsed > self._allowed:
            self._allowed = max(self._allowed, self._seconds * slowness())
        return elapsed <= self._allowed
