"""When the next attempt may start: tenacity's wait strategies, evaluated as pure functions."""

from __future__ import annotations

import random
from typing import Any, cast

from tenacity import RetryCallState, wait_exponential

from tasks.group import RetryPolicy

# A lost worker is our failure: the first relaunch is at once, the next ones give a sick host time to be noticed.
LOSS_BACKOFF = (0.0, 2.0, 10.0)


class _Attempt:
    """As much of a RetryCallState as a wait strategy reads."""

    def __init__(self, number: int) -> None:
        self.attempt_number = number


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
