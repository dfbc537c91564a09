"""Corrects times that were written before the clock was set back."""

from __future__ import annotations

CLOCK_SLACK = 1.0  # seconds; as in commit.lua


def come_if_beyond(at: float, limit: float) -> float:
    """Return ``at``, or 0 (due now) if it is later than ``limit``.

    Args:
        limit: the latest time that could be written now.
    """
    return at if at <= limit + CLOCK_SLACK else 0.0
