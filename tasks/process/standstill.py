"""Standstill: for how long has a process been seen stopped (SIGSTOP, a debugger)?

Pure: what was seen goes in, and the seconds come out. Only time counts in which the one who looks ran itself: a host
that sleeps, or a tree that is frozen as a whole, thaws at once, and is not to blame whoever it sees first.
"""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.tasks.process.tree import Seen

LOOKS = 10  # in the time after which a process counts as stopped for good


@dataclass(frozen=True, slots=True)
class Standstill:
    """What is known so far.

    Attributes:
        seconds: for which it was seen stopped, without a look in between that saw it run.
        last: when it was last seen stopped, monotonic seconds; None if it was not at the last look.
    """

    seconds: float = 0.0
    last: float | None = None

    def after(self, seen: Seen, now: float, *, within: float) -> Standstill:
        """What is known after another look.

        Args:
            within: seconds in which the next look should have come; a longer gap counts as no more than that.
        """
        if seen is not Seen.STOPPED:
            return Standstill()
        gap = 0.0 if self.last is None else min(now - self.last, within)
        return Standstill(self.seconds + gap, now)
