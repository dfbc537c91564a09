"""Computes the wait before the next try: after failures, for a busy lock, or for a store."""

from __future__ import annotations

import random
from collections.abc import Callable

from unstuck.tasks.spec.retry import RetryPolicy

Uniform = Callable[[float, float], float]
"""Draws a number between two others, as ``random.uniform`` does."""
MAX_DOUBLINGS = 100  # of a wait: more would overflow a float
# A lost worker is our failure: the first relaunch is at once, the next ones give a sick host time
# to be noticed.
LOSS_BACKOFF = (0.0, 2.0, 10.0)
# How long to wait for a lock of another process, and for a store that is away.
# Seconds at most, at first and at last.
BUSY_WAIT = (0.005, 0.1)
AWAY_WAIT = (0.1, 2.0)


def doubled(wait: float, longest: float, times: int) -> float:
    """Return ``wait`` seconds, doubled ``times`` times, and at most ``longest``."""
    return min(longest, wait * 2.0 ** min(max(0, times), MAX_DOUBLINGS))


def random_wait(wait: tuple[float, float], tries: int, uniform: Uniform) -> float:
    """Return random seconds to wait after ``tries`` tries, without a seed."""
    first, longest = wait
    return uniform(0.0, doubled(first, longest, tries - 1))


def backoff(policy: RetryPolicy, failures: int, seed: str) -> float:
    """Return the seconds to wait after a number of failures in a row.

    The wait is ``backoff * 2**(failures-1)``, capped, with jitter. The jitter is drawn from
    ``seed``, so that deciding twice gives the same time. It only shortens the wait.
    """
    plain = doubled(policy.backoff, policy.max_backoff, failures - 1)
    return plain * (1 - random.Random(seed).random() * policy.jitter)


def loss_backoff(losses: int) -> float:
    """Return the seconds to wait after the ``losses``-th worker in a row was lost."""
    return LOSS_BACKOFF[min(max(1, losses), len(LOSS_BACKOFF)) - 1]
