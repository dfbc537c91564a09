"""Standstill: for how many seconds has a process been seen stopped (SIGSTOP, a debugger)?

Only time in which the observer itself ran is counted: when a whole host wakes from sleep, no process is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.tasks.process.tree import Seen

LOOKS = 10  # before a process counts as stopped for good


@dataclass(frozen=True, slots=True)
class Standstill:
    """What was observed so far.

    Attributes:
        seconds: for which the process was seen stopped, without one look that saw it run.
        last: when the process was seen stopped, monotonic seconds; None if it ran at the last look.
    """

    seconds: float = 0.0
    last: float | None = None

    def after(self, seen: Seen, now: float, *, within: float) -> Standstill:
        """The standstill after another look.

        Args:
            within: seconds in which the look was due; a longer gap counts as this many.
        """
        if seen is not Seen.STOPPED:
            return Standstill()
        gap = 0.0 if self.last is None else min(now - self.last, within)
        return Standstill(self.seconds + gap, now)
