"""Trouble: what goes wrong in one history, and how often. Each seed draws its own mix, from calm to storm.

Trouble ends at a stated time; nothing that it began (a freeze, a delay, a partition) outlasts that time, but for deaf
runners: the deadline of a cancel is there for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum


class Fault(StrEnum):
    """What may befall one call to the store or the warehouse."""

    NONE = "none"
    DIE_BEFORE = "dies before"
    DIE_AFTER = "dies after"
    FREEZE_BEFORE = "freezes before"
    FREEZE_AFTER = "freezes after"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    REPEATED = "reply lost, repeated"  # redis-py repeats by itself


_RATES = (0.0, 0.002, 0.006, 0.02)


class Trouble:
    """The dice of everything that goes wrong."""

    def __init__(self, rng: random.Random, clock: Callable[[], float], ends: float) -> None:
        self._rng = rng
        self._clock = clock
        self.ends = ends
        kinds = [kind for kind in Fault if kind is not Fault.NONE]
        self._table: list[tuple[float, Fault]] = []
        total = 0.0
        for kind in kinds:
            total += rng.choice(_RATES)
            self._table.append((total, kind))
        self._total = total
        self.lose = rng.choice((0.0, 0.05, 0.2))  # of hints
        self.lose_report = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.double = rng.choice((0.0, 0.1, 0.3))
        self.delay = rng.choice((0.0, 0.1, 0.3))
        self.reorder = rng.choice((0.0, 0.3))
        self.blind = rng.choice((0.0, 0.0, 0.3))  # the warehouse cannot be read
        self.longest_freeze = rng.choice((1.0, 8.0, 45.0))
        self.runner_dies = rng.choice((0.0, 0.05, 0.15))  # at each boundary of an attempt
        self.runner_freezes = rng.choice((0.0, 0.05, 0.15))
        self.drains = rng.choice((0.0, 0.05))
        self.deaf = rng.choice((0.0, 0.3, 0.7))  # attempts that do not leave when they are told to

    @property
    def on(self) -> bool:
        return self._clock() < self.ends

    def chance(self, share: float) -> bool:
        return share > 0 and self.on and self._rng.random() < share

    def of_call(self) -> Fault:
        if not self.on:
            return Fault.NONE
        drawn = self._rng.random()
        if drawn >= self._total:
            return Fault.NONE
        return next(kind for bound, kind in self._table if drawn < bound)

    def freeze_until(self) -> float:
        """When something that freezes now thaws; never after the trouble ends."""
        return min(self.ends, self._clock() + self._rng.uniform(0.1, self.longest_freeze))

    def hang(self) -> float:
        """For how long a deaf runner does not leave, in seconds: the one thing that may outlast the trouble."""
        return self._rng.uniform(5.0, 150.0)

    def late(self) -> float:
        """When a message that is sent now arrives."""
        now = self._clock()
        return min(self.ends, now + self._rng.uniform(0.1, 12.0)) if self.chance(self.delay) else now
