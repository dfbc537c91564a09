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

from tests.support.machine import SLOWNESS, contended, slowness, waited

DENSE = 100  # looks a second, at least
BUSY = 1.5  # times as slow as an idle machine
CONTENDED = 1 / 3  # of the time in which somebody waited for a processor
_EVERY = 0.007  # seconds from one look to the next


class Looks:
    """When one reader looked."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._waits: list[float] = []  # for how long it had waited for a processor by then
        self._contended: list[float] = []  # for how long some process of this machine had

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
        self._contended.append(contended())

    def rate(self, since: float, until: float) -> float:
        """Looks a second between two times since the epoch; 0 if none was before the first or after the second.

        Without end where the second time is not later: a process may die when its job has ended already. The time is
        left out in which this thread could run and the kernel gave it no processor.
        """
        if until <= since:
            return math.inf
        first, last = self._window(since, until)
        if first < 0 or last >= len(self._times):
            return 0.0
        without = self._waits[last] - self._waits[first]
        return (last - first) / max(self._times[last] - self._times[first] - without, 1e-9)

    def _window(self, since: float, until: float) -> tuple[int, int]:
        """The number of the last look that was over at ``since``, and of the first one after ``until``."""
        return bisect_right(self._times, since) - 1, bisect_left(self._times, until)

    def require(self, since: float, until: float, who: str) -> None:
        """Fail if there were fewer than `DENSE` looks a second between two times; the last thing that a test does.

        If some process waited for a processor for much of that time, the test is skipped, as by ``require``.
        """
        rate = self.rate(since, until)
        if 0 < rate < DENSE:
            first, last = self._window(since, until)
            share = (self._contended[last] - self._contended[first]) / (self._times[last] - self._times[first])
            if share > CONTENDED:
                pytest.skip(
                    f"all that was seen is as promised, but {who} looked {rate:.0f} times a second, and {DENSE} are "
                    f"promised: for {share:.0%} of that time some process waited for a processor"
                )
        require(rate, DENSE, who)


def require(rate: float, wanted: float, who: str) -> None:
    """Fail if ``who`` looked fewer than ``wanted`` times a second.

    On a machine that is busy, or was when the tests began, the test is skipped instead, and says why: what a reader
    could have done there is not to be told, since what it waits for waits for a processor, too.
    """
    if rate >= wanted:
        return
    said = f"{who} looked {rate:.0f} times a second, and {wanted} are promised"
    assert rate > 0, said
    slow = max(slowness(), float(os.environ[SLOWNESS]))
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
