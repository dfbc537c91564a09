"""A clock that a test sets forward instead of waiting."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds, plus the seconds that a test has skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds
