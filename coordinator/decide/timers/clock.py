"""Times on a record, when the clock was set back: one that lies too far ahead was written before
that.
"""

from __future__ import annotations

CLOCK_SLACK = 1.0  # seconds; as in commit.lua


def come_if_beyond(at: float, limit: float) -> float:
    """``at``; 0, which has come, if it lies beyond ``limit``, as far as a time that is written now
    may lie ahead.
    """
    return at if at <= limit + CLOCK_SLACK else 0.0
