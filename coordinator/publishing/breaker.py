"""A circuit breaker bounds how long a submit or a retry waits for a warehouse that hangs.

A dead network mount hangs, for example. Each call has its own thread, because a thread that waits
for a dead mount cannot be stopped. After its limit the thread is abandoned. When several calls
hang, later calls are refused at once, except for one call a minute.
"""
# A call that was left behind may still end much later, so only reading and making an id may be done
# here.

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from unstuck.coordinator.errors import WarehouseSilent
from unstuck.tasks.process.call_deadlines import call_in_thread
from unstuck.tasks.warehouse.object_store import lacking_keys

LIMIT = 10.0  # seconds, for a read or a write of one small file
# Seconds for a listing of the log, which never shrinks. An object store lists 1,000 names in 0.2 s,
# so this is enough for 1.5 million entries: three years at one job a minute.
LISTING = 300.0
OPENS_AT = 2  # calls that hang in one warehouse before others are refused at once
TRY_EVERY = 60.0  # seconds between two tries of a warehouse whose calls are refused
MOST_HANGING = 64  # calls that hang in one warehouse before this process stops trying

T = TypeVar("T")


class CircuitBreaker:
    """Calls warehouses, and waits at most a limited time for each answer. Thread-safe."""

    def __init__(
        self, limit: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a breaker.

        Args:
            limit: seconds, unless a call names its own; None: `LIMIT`.
            clock: monotonic seconds.
        """
        self._limit = LIMIT if limit is None else limit
        self._clock = clock
        self._hanging: dict[str, list[Future[Any]]] = {}  # by warehouse
        self._next_at: dict[str, float] = {}  # when the next call may try, by warehouse
        self._mutex = threading.Lock()

    def call(
        self, place: str, what: str, function: Callable[[], T], limit: float | None = None
    ) -> T:
        """Return the answer of the warehouse at ``place``.

        Args:
            what: begins the message of a refusal: ``job a is not stored``.
            limit: seconds, for an answer that takes long in a healthy warehouse.

        Raises:
            WarehouseSilent: there was no answer within the limit, or too many calls wait already.
            Exception: whatever ``function`` raises.
        """
        hanging = self._refusal(place)
        if hanging:
            raise WarehouseSilent(
                _text(place, what, f"does not answer: {hanging} calls of this process hang in it")
            )
        call = call_in_thread(function, "warehouse-call")
        limit = self._limit if limit is None else limit
        wait([call], limit)
        if not call.done():
            with self._mutex:
                self._hanging.setdefault(place, []).append(call)
            raise WarehouseSilent(_text(place, what, f"has not answered within {limit:g}s"))
        return call.result()

    def _refusal(self, place: str) -> int:
        """Return how many calls hang, if they are too many to call now; else 0."""
        with self._mutex:
            hanging = [call for call in self._hanging.get(place, ()) if not call.done()]
            self._hanging[place] = hanging
            now = self._clock()
            if len(hanging) >= MOST_HANGING or (
                len(hanging) >= OPENS_AT and now < self._next_at.get(place, now)
            ):
                return len(hanging)
            if len(hanging) >= OPENS_AT:
                self._next_at[place] = now + TRY_EVERY
            return 0


def _text(place: str, what: str, trouble: str) -> str:
    cure = (
        f"{lacking_keys(place, os.environ)} See whether it is mounted on this machine and its "
        "server is up"
    ).strip()
    return f"{what}: the warehouse {place} {trouble}. {cure} (`unstuck doctor`), then ask again"
