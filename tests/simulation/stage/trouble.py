"""Trouble: what goes wrong in one history, and how often. Each seed draws its own mix, from none to
all of it.

Trouble ends at a stated time; nothing that it began (a freeze, a delay, a partition) outlasts that
time, but for
runners that ignore orders: the deadline of a cancel is there for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from enum import StrEnum


class Fault(StrEnum):
    """A fault of one call to the store or the warehouse."""

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

    def __init__(
        self,
        rng: random.Random,
        clock: Callable[[], float],
        ends: float,
        more: random.Random | None = None,
        only: Collection[int] | None = None,
    ) -> None:
        """
        Args:
            more: dice of their own for what was thought of later, so that the rest is as it would
                be; None: none of it.
            only: of all the things that would go wrong, by number in order, those that do; None:
                all.
        """
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
        self.lose = rng.choice((0.0, 0.05, 0.2))  # of offers
        self.lose_report = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.double = rng.choice((0.0, 0.1, 0.3))
        self.delay = rng.choice((0.0, 0.1, 0.3))
        self.reorder = rng.choice((0.0, 0.3))
        self.blind = rng.choice((0.0, 0.0, 0.3))  # the warehouse cannot be read
        self.longest_freeze = rng.choice((1.0, 8.0, 45.0))
        self.runner_dies = rng.choice((0.0, 0.05, 0.15))  # at each boundary of an attempt
        self.runner_freezes = rng.choice((0.0, 0.05, 0.15))
        self.drains = rng.choice((0.0, 0.05))
        self.ignores_instructions = rng.choice(
            (0.0, 0.3, 0.7)
        )  # attempts that do not leave when they are told to
        self._more = more or random.Random(0)
        self.watchdog_dies = self._more.choice((0.0, 0.05, 0.2)) if more else 0.0  # at each renewal
        self.publisher_freezes = (
            self._more.choice((0.3, 0.6, 0.9)) if more else 0.0
        )  # before each slot
        if more is not None and more.random() < 0.25:
            # No call has a fault: what messages and workers cost can be measured while they are
            # lost.
            self._table, self._total = [], 0.0
        self.away_until = 0.0  # until when the store is not there
        # Since when no coordinator has had a fault, its connections or the store.
        self.quiet_since = 0.0
        # The same for what makes a coordinator lose what it knows: not for a freeze.
        self.lost_since = 0.0
        self._only = only
        self.faults = 0  # things that went wrong, or would have

    @property
    def on(self) -> bool:
        return self._clock() < self.ends

    @property
    def away(self) -> bool:
        """The store cannot be reached by anybody."""
        return self._clock() < self.away_until

    def happens(self) -> bool:
        """Something is about to go wrong: whether it does (a history that is shrunk leaves out most
        of it).
        """
        self.faults += 1
        return self._only is None or self.faults in self._only

    def disturb(self, until: float, *, loses: bool = True) -> None:
        """A fault of a coordinator, of its connections or of the store begins; until then it delays
        what they do.

        Args:
            loses: a coordinator may have lost what it knew, as with an answer that did not come.
        """
        self.quiet_since = max(self.quiet_since, until)
        if loses:
            self.lost_since = max(self.lost_since, until)

    def chance(self, share: float) -> bool:
        return share > 0 and self.on and self._rng.random() < share and self.happens()

    def chance_of_more(self, share: float) -> bool:
        return share > 0 and self.on and self._more.random() < share and self.happens()

    def of_call(self) -> Fault:
        if not self.on:
            return Fault.NONE
        drawn = self._rng.random()
        if drawn >= self._total or not self.happens():
            return Fault.NONE
        return next(kind for bound, kind in self._table if drawn < bound)

    def freeze_until(self) -> float:
        """When something that freezes now thaws; never after the trouble ends."""
        return min(self.ends, self._clock() + self._rng.uniform(0.1, self.longest_freeze))

    def freeze_of_publisher(self) -> float:
        """The same for a publisher: most often long enough that the job goes on without it."""
        return min(
            self.ends,
            self._clock() + self._more.choice((0.5, 10.0, 40.0)) * self._more.uniform(0.5, 1.0),
        )

    def hang(self) -> float:
        """How many seconds a runner that ignores orders stays: the one thing that may outlast the
        trouble.
        """
        return self._rng.uniform(5.0, 150.0)

    def late(self) -> float:
        """When a message that is sent now arrives."""
        now = self._clock()
        return (
            min(self.ends, now + self._rng.uniform(0.1, 12.0)) if self.chance(self.delay) else now
        )
