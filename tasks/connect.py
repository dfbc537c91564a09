"""A worker's connection to the store: short waits, few silent repeats.

redis-py repeats a command up to ten times by itself; here that is bounded, so that a watchdog goes on counting
seconds while the store is away, and the callers that must get through repeat by their own, visible rule.
"""

from __future__ import annotations

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry


def connect(url: str, *, timeout: float = 5.0, repeats: int = 2) -> redis.Redis:
    """A client that answers within about ``timeout`` seconds per try, with decoded responses."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(base=0.05, cap=0.5), repeats),
    )
