"""Readers that poll while processes are killed, one thread each, and how densely they did so."""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.support.machine import SLOWNESS, slowness, waited

DENSE = 100  # looks a second, at least
BUSY = 1.5  # times as slow as an idle machine
_EVERY = 0.007  # seconds from one look to the next


class Looks:
    """When one reader looked."""

    def __init__(self) -> None:
        self._slow: float | None = None  # how slow the machine was then, if it was measured
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
        self._waits.append(waited())

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
        without = self._waits[last] - self._waits[first]
        return (last - first) / max(self._times[last] - self._times[first] - without, 1e-9)

    def settle(self, since: float, until: float) -> None:
        """If there were too few, measure the machine: now, since by the time of ``require`` it may be idle again."""
        if 0 < self.rate(since, until) < DENSE:
            self._slow = slowness()

    def require(self, since: float, until: float, who: str) -> None:
        """Do as the function ``require`` with the rate between two times; the last thing that a test does."""
        require(self.rate(since, until), DENSE, who, self._slow)


def require(rate: float, wanted: float, who: str, slow: float | None = None) -> None:
    """Fail if ``who`` looked fewer than ``wanted`` times a second.

    On a machine that is busy, or was when the tests began, the test is skipped instead, and says why: what a reader
    could have done there is not to be told, since what it waits for waits for a processor, too.

    Args:
        slow: how slow the machine was at that time; None: it is measured now.
    """
    if rate >= wanted:
        return
    said = f"{who} looked {rate:.0f} times a second, and {wanted} are promised"
    assert rate > 0, said
    slow = max(slowness() if slow is None else slow, float(os.environ[SLOWNESS]))
    assert slow > BUSY, said
    pytest.skip(
        f"all that was seen is as promised, but {said}: this machine is {slow:.1f} times as slow as an idle one"
    )


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
