"""How long to wait before the next try: after failures, after lost workers, for a busy lock or a
store that is away.
"""

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
# How long to wait for a lock that somebody else holds, and for a store that is away.
# Seconds at most, at first and at last.
BUSY_WAIT = (0.005, 0.1)
AWAY_WAIT = (0.1, 2.0)


def doubled(wait: float, longest: float, times: int) -> float:
    """``wait`` seconds, doubled so many ``times``, and at most the ``longest``."""
    return min(longest, wait * 2.0 ** min(max(0, times), MAX_DOUBLINGS))


def random_wait(wait: tuple[float, float], tries: int, uniform: Uniform) -> float:
    """Seconds to wait after ``tries`` tries.

    The one wait here that is drawn at random and not from a seed.
    """
    first, longest = wait
    return uniform(0.0, doubled(first, longest, tries - 1))


def backoff(policy: RetryPolicy, failures: int, seed: str) -> float:
    """Seconds to wait after the ``failures``-th failure in a row: ``backoff * 2**(failures-1)``,
    capped, with jitter.

    The jitter is drawn from ``seed``, so that deciding the same thing twice gives the same time. It
    only shortens the wait, by its share at most.
    """
    plain = doubled(policy.backoff, policy.max_backoff, failures - 1)
    return plain * (1 - random.Random(seed).random() * policy.jitter)


def loss_backoff(losses: int) -> float:
    """Seconds to wait after the ``losses``-th worker in a row was lost under a group."""
    return LOSS_BACKOFF[min(max(1, losses), len(LOSS_BACKOFF)) - 1]
