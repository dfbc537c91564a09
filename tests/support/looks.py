"""Readers that poll while processes are killed, one thread each, and how densely they did so."""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.machine import SLOWNESS, slowness

DENSE = 100  # looks a second, at least
BUSY = 1.5  # times as slow as an idle machine
_EVERY = 0.004  # seconds from one look to the next


class Looks:
    """When one reader looked. ``wanted``: how many looks a second it owes; one at all on a machine that is busy."""

    def __init__(self) -> None:
        self.wanted: float = DENSE
        self._times: list[float] = []
        self._waits: list[float] = []  # for how long it had waited for a processor by then

    def __len__(self) -> int:
        return len(self._times)

    @property
    def last(self) -> float:
        """When the last one was over, in seconds since the epoch."""
        return self._times[-1]

    def note(self) -> None:
        """One more look is over."""
        self._times.append(time.time())
        self._waits.append(_waited())

    def rate(self, since: float, until: float) -> float:
        """Looks a second between two times since the epoch; 0 if none was before the first or after the second.

        Without end where the second time is not later: a process may die when its job has ended already. The time is
        left out in which this thread could run and the kernel gave it no processor.
        """
        if until <= since:
            return math.inf
        first, last = bisect_right(self._times, since) - 1, bisect_left(self._times, until)
        if first < 0 or last >= len(self._times):
            return 0.0
        waited = self._waits[last] - self._waits[first]
        return (last - first) / max(self._times[last] - self._times[first] - waited, 1e-9)

    def settle(self, since: float, until: float) -> None:
        """If there were too few, see whether the machine is busy now, or was when the tests began.

        What a reader could have done then is not to be told: threads beside it wait for a processor, too.
        """
        if 0 < self.rate(since, until) < DENSE and max(slowness(), float(os.environ[SLOWNESS])) > BUSY:
            self.wanted = 0.0


def _waited() -> float:
    """For how many seconds the kernel has let this thread wait for a processor; 0 where it does not say."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


@contextmanager
def readers(polls: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Each of ``polls`` is called again and again within the block; the first error of one is raised at its end."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def read(poll: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                began = time.monotonic()
                poll()
                stop.wait(max(0.0, began + _EVERY - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it
            errors.append(error)

    threads = [threading.Thread(target=read, args=(poll,)) for poll in polls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
