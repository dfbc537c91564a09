"""Times on a record after the clock was set back: a time too far ahead was written before."""

from __future__ import annotations

CLOCK_SLACK = 1.0  # seconds; as in commit.lua


def come_if_beyond(at: float, limit: float) -> float:
    """Return ``at``, or 0 (which has come) if it lies beyond ``limit``.

    Args:
        limit: how far ahead a time may lie that is written now.
    """
    return at if at <= limit + CLOCK_SLACK else 0.0
