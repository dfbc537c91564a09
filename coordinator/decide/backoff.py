"""When the next attempt may start: tenacity's wait strategies, evaluated as pure functions.

The jitter of a retry is not tenacity's, which draws at random: it is drawn here, from a seed, so that deciding is pure.
"""

from __future__ import annotations

import random
from typing import Any, cast

from tenacity import RetryCallState, wait_exponential, wait_random_exponential
from tenacity.wait import wait_base

from unstuck.tasks.protocol.group import RetryPolicy

# A lost worker is our failure: the first relaunch is at once, the next ones give a sick host time to be noticed.
LOSS_BACKOFF = (0.0, 2.0, 10.0)


# How long to wait for a lock that somebody else holds, and for a store that is away.
BUSY_WAIT = wait_random_exponential(multiplier=0.005, max=0.1)
AWAY_WAIT = wait_random_exponential(multiplier=0.1, max=2.0)


class _Attempt:
    """As much of a RetryCallState as a wait strategy reads."""

    def __init__(self, number: int) -> None:
        self.attempt_number = number


def random_wait(strategy: wait_base, tries: int) -> float:
    """Seconds to wait after ``tries`` tries. The one wait here that is drawn at random and not from a seed."""
    return float(strategy(cast(RetryCallState, cast(Any, _Attempt(max(1, tries))))))


def backoff(policy: RetryPolicy, failures: int, seed: str) -> float:
    """Seconds to wait after the ``failures``-th failure in a row: ``backoff * 2**(failures-1)``, capped, with jitter.

    The jitter is drawn from ``seed``, so that deciding the same thing twice gives the same time. It never exceeds
    the cap and never falls below the plain backoff less its share.
    """
    if policy.backoff <= 0:
        return 0.0
    # wait_exponential meets the overflow of a thousand doublings with its maximum.
    strategy = wait_exponential(multiplier=policy.backoff, max=policy.max_backoff, exp_base=2)
    plain = strategy(cast(RetryCallState, cast(Any, _Attempt(max(1, failures)))))
    share = random.Random(seed).random() * policy.jitter
    return float(plain * (1 - share))


def loss_backoff(losses: int) -> float:
    """Seconds to wait after the ``losses``-th worker in a row was lost under a group."""
    return LOSS_BACKOFF[min(max(1, losses), len(LOSS_BACKOFF)) - 1]
