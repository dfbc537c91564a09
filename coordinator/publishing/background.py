"""Runs long warehouse operations in their own threads, so that a hanging one delays no other."""
# So only work that may be done twice, and twice at once, is done here: publishing, for which the
# number in the warehouse log decides, and the collection of staging.

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

log = logging.getLogger(__name__)
TERM = 120.0  # seconds after which a piece of work counts as hanging
MOST = 64  # threads that hang before the process had better be replaced

Work = Callable[[Callable[[], None]], None]
"""A piece of work. It is given a function, which it calls whenever it has made progress."""


@dataclass(slots=True, eq=False)
class _Run:
    key: Hashable
    place: str
    since: float  # of its begin, or of its last progress
    hangs: bool = False


class Background:
    """Runs work in daemon threads, a few at a time in each place.

    Daemon threads do not keep an ending process alive.
    """

    def __init__(
        self,
        at_once: int,
        name: str = "publisher",
        *,
        term: float = TERM,
        most: int = MOST,
        beside: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the room for work.

        Args:
            at_once: pieces of work in one place; those that hang are not counted.
            term: seconds without a sign of life after which a piece of work counts as hanging.
            most: pieces that hang before the process is exhausted.
            beside: threads that may hang in the same work; after that, only a call with
                ``new_try`` begins it.
        """
        self._at_once, self._name, self._term = at_once, name, term
        self._most, self._clock = most, clock
        self._beside = beside
        self._waiting: dict[str, dict[Hashable, Work]] = {}
        self._runs: list[_Run] = []
        self._mutex = threading.Lock()

    def __call__(self, key: Hashable, place: str, work: Work, *, new_try: bool = False) -> bool:
        """Run ``work`` in the room of ``place``, unless other work for ``key`` runs.

        Args:
            new_try: the work that runs is known to hang, so this work begins, too.

        Returns whether the work waits for room.
        """
        with self._mutex:
            now = self._clock()
            self._notice(now)
            tries = [run for run in self._runs if run.key == key]
            if new_try or (len(tries) < self._beside and all(run.hangs for run in tries)):
                self._waiting.setdefault(place, {})[key] = work
            self._fill(place, now)
            return key in self._waiting.get(place, {})

    @property
    def exhausted(self) -> bool:
        """Whether so many threads hang that only another process would help."""
        with self._mutex:
            self._notice(self._clock())
            return sum(run.hangs for run in self._runs) >= self._most

    def _notice(self, now: float) -> None:
        for run in self._runs:
            if not run.hangs and now - run.since >= self._term:
                run.hangs = True
                text = (
                    "%s %s in %s made no progress for %.0fs and counts as hanging: other work "
                    "has its room"
                )
                log.warning(text, self._name, run.key, run.place, now - run.since)

    def _fill(self, place: str, now: float) -> None:
        """Begin waiting work, as far as there is room."""
        waiting = self._waiting.get(place, {})
        room = self._at_once - sum(run.place == place and not run.hangs for run in self._runs)
        for key in list(waiting)[: max(0, room)]:
            run = _Run(key, place, now)
            thread = threading.Thread(
                target=self._run, args=(run, waiting[key]), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # A limit of the host: the work waits, and no run is left behind that would seem to
                # hang.
                log.warning(
                    "%s %s in %s waits: no thread could be started for it: %s",
                    self._name,
                    key,
                    place,
                    error,
                )
                break
            self._runs.append(run)  # before it can end: that takes the mutex, which is ours
            del waiting[key]
        if not waiting:
            self._waiting.pop(place, None)

    def _progressed(self, run: _Run) -> None:
        """Record progress of the work."""
        with self._mutex:
            run.since, run.hangs = self._clock(), False

    def _run(self, run: _Run, work: Work) -> None:
        try:
            work(lambda: self._progressed(run))
        finally:
            with self._mutex:
                self._runs.remove(run)
                self._fill(run.place, self._clock())
