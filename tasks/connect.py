"""A worker's connection to the store: short waits, few silent repeats.

redis-py repeats a command up to ten times by itself; here that is bounded, so that a watchdog goes on counting
seconds while the store is away, and the callers that must get through repeat by their own, visible rule.
"""

from __future__ import annotations

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from tasks.keys import Keys


def connect(url: str, *, timeout: float = 5.0, repeats: int = 2) -> redis.Redis:
    """A client that answers within about ``timeout`` seconds per try, with decoded responses."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        # Bytes that are no text must be shown and parked, not raised out of the read (test_reports_that_are_no_text).
        encoding_errors="backslashreplace",
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(base=0.05, cap=0.5), repeats),
    )


# Errors that the server gives as an answer, though they say that it cannot serve now, not that the command is wrong.
_AWAY = ("READONLY", "MISCONF", "NOREPLICAS", "LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED", "OOM")


def unavailable(error: BaseException) -> bool:
    """The store cannot serve at this moment (away, full, failing over): wait and try again; nobody did wrong."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.exceptions.OutOfMemoryError):
        return True
    if isinstance(error, redis.exceptions.ReadOnlyError):
        return True
    # A script passes such an answer on with its own words around it.
    return isinstance(error, redis.ResponseError) and any(word in str(error)[:200] for word in _AWAY)


def takes_writes(client: redis.Redis | redis.client.Pipeline, keys: Keys) -> None:
    """Ask for a write that changes nothing, and that the server refuses whenever it refuses any.

    Raises:
        redis.RedisError: the server's refusal, in a pipeline later; ``unavailable`` tells whether it may end by itself.
    """
    client.lpushx(keys.nothing, "")
