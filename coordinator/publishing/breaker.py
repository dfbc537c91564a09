"""Patience: for how long a submit or a retry waits for its warehouse, which may hang as a dead mount does.

Whoever asks it does so in a thread of its own, since a thread that waits on a dead mount cannot be ended. When the
limit is over, the thread is left behind, and the caller is told that the warehouse does not answer. Where several hang
already, the others are refused at once, and one a minute tries whether the warehouse is well again. So the threads of
a coordinator are free for what needs no warehouse, such as a cancel.

What is left behind may still end, much later. So only what nobody minds may be asked here: reading, and making an id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unstuck.coordinator.errors import WarehouseSilent

LIMIT = 10.0  # seconds, for a read or a write of one small file
# Seconds for a listing of the log, which never shrinks. An object store lists 1,000 names a page, one page after the
# other, and is silent until the last: at 0.2 s a page these are 1.5 million names, of one job a minute for years.
LISTING = 300.0
ENOUGH = 2  # questions that hang in one warehouse before the others are refused at once
EVERY = 60.0  # seconds between two tries from then on
MOST = 64  # that hang in one warehouse before this process asks no more

T = TypeVar("T")


class _Question(threading.Thread, Generic[T]):
    """One question, asked in a thread that keeps no process alive."""

    def __init__(self, ask: Callable[[], T]) -> None:
        super().__init__(name="warehouse-question", daemon=True)
        self._ask = ask
        self.answers: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answers.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self.error = error


@dataclass(slots=True)
class _Place:
    """What hangs in one warehouse, and when the next may try."""

    hanging: list[threading.Thread] = field(default_factory=list)
    next_at: float = 0.0


class Patience:
    """Asks warehouses, and waits no longer than a limit for each answer. Threads may share it."""

    def __init__(self, limit: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``limit``: seconds, where a question names none of its own; `LIMIT` if None. ``clock``: monotonic seconds."""
        self._limit = LIMIT if limit is None else limit
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._mutex = threading.Lock()

    def ask(self, place: str, what: str, question: Callable[[], T], limit: float | None = None) -> T:
        """The answer of the warehouse at ``place``.

        Args:
            what: what does not happen without an answer, as the beginning of a sentence: ``job a is not stored``.
            limit: seconds, where an answer may take longer than others, though the warehouse is well.

        Raises:
            WarehouseSilent: there was none within the limit, or too many wait for one already.
            Exception: whatever ``question`` raises.
        """
        hanging = self._refusal(place)
        if hanging:
            raise WarehouseSilent(
                _text(place, what, f"does not answer: {hanging} questions of this process hang in it")
            )
        asked = _Question(question)
        asked.start()
        limit = self._limit if limit is None else limit
        asked.join(limit)
        if asked.is_alive():
            with self._mutex:
                self._places.setdefault(place, _Place()).hanging.append(asked)
            raise WarehouseSilent(_text(place, what, f"has not answered within {limit:g}s"))
        if asked.error is not None:
            raise asked.error
        return asked.answers[0]

    def _refusal(self, place: str) -> int:
        """How many hang there, if they are too many to ask now; else 0."""
        with self._mutex:
            known = self._places.get(place)
            if known is None:
                return 0
            known.hanging = [thread for thread in known.hanging if thread.is_alive()]
            if len(known.hanging) < ENOUGH:
                return 0
            now = self._clock()
            if len(known.hanging) >= MOST or now < known.next_at:
                return len(known.hanging)
            known.next_at = now + EVERY
            return 0


def _text(place: str, what: str, trouble: str) -> str:
    return (
        f"{what}: the warehouse {place} {trouble}. See whether it is mounted on this machine and its server is up "
        "(`unstuck doctor`), then ask again"
    )
