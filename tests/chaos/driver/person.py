"""The person: pauses and resumes one schedule at random times, and wants ticks of the past of
another one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.schedules import HELD, PAST
from unstuck import Unreachable
from unstuck.coordinator.model.tick import tick_text

GOES_ON = (4.0, 10.0)  # seconds between a resume and the next pause
STAYS = (1.0, 5.0)  # seconds between a pause and its resume
DAY = 86400
PARALLEL = 3  # runs of the backfill
SECONDS_A_TICK = 4  # of faults, for each tick of the backfill


@dataclass(frozen=True, slots=True)
class Act:
    """A command, from when it was asked for the first time to when it was answered; seconds since
    the epoch.
    """

    what: str
    asked: float
    answered: float


@dataclass(slots=True)
class Person:
    """Acts in a thread of its own, over the app's link, and asks each time until there is an
    answer.

    Attributes:
        number: of the ticks of the backfill.
        acts: the pauses and resumes, in turn.
        wanted: the ticks of the backfill.
    """

    fleet: ChaosFleet
    rng: random.Random
    number: int
    acts: list[Act] = field(default_factory=list)
    wanted: list[float] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="person", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Leave the schedule as the last act left it. Raises: TimeoutError: a command is not
        answered in time.
        """
        self._enough.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(
                    f"a command was not answered within {timeout:g} s, though all faults were "
                    "undone"
                )

    def _run(self) -> None:
        schedules, last = self.fleet.client.schedules, int(time.time() // DAY * DAY)
        self._enough.wait(self.rng.uniform(*STAYS))
        self.wanted = [float(last - n * DAY) for n in reversed(range(self.number))]
        first, until = tick_text(self.wanted[0]), tick_text(last)
        self._ask("backfill", lambda: schedules.backfill(PAST, first, until, parallel=PARALLEL))
        while not self._enough.wait(self.rng.uniform(*GOES_ON)):
            self.acts.append(
                self._ask("pause", lambda: schedules.pause(HELD, reason="a person wants it"))
            )
            if not self._enough.wait(self.rng.uniform(*STAYS)):
                self.acts.append(self._ask("resume", lambda: schedules.resume(HELD)))

    def _ask(self, what: str, command: Callable[[], Any]) -> Act:
        asked = time.time()
        while True:
            try:
                command()
                return Act(what, asked, time.time())
            except Unreachable:
                threading.Event().wait(0.1)
