"""Readers that poll while processes are killed, one thread each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LOOK_INTERVAL_S = 0.007


class Looks:
    """When one reader looked, in seconds since the epoch."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    @property
    def last(self) -> float:
        """When the last look ended."""
        return self._times[-1]

    def note(self) -> None:
        """Record that a look has ended."""
        self._times.append(time.time())


@contextmanager
def readers(polls: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Call each of ``polls`` repeatedly within the block, and raise the first error at the end of
    the block.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def read(poll: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                began = time.monotonic()
                poll()
                stop.wait(max(0.0, began + LOOK_INTERVAL_S - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the test raises it
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
