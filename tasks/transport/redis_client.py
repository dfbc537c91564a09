"""Connect to Redis with short timeouts and few silent retries, as Celery's address is written.

A watchdog must go on counting seconds while Redis is away, and a caller that must get through
repeats by its own rule.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from redis.retry import Retry
from tenacity import (
    Retrying,
    before_sleep_log,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import tls_options, without_options

log = logging.getLogger(__name__)


def _begin(connection: Any) -> None:
    """Send only the login and the choice of the database on a new connection."""
    connection.driver_info = None
    connection.next_health_check = time.monotonic() + connection.health_check_interval
    connection.on_connect()


# Of every connection of ours. By itself redis-py asks five things more on each, and each reply is
# waited for and may be lost: on a line that loses one reply in twenty a Celery worker hardly came
# to listen.
FEW_QUESTIONS: dict[str, Any] = {"protocol": 2, "redis_connect_func": _begin}

# A reply that is lost without a word costs who waits for it the first, and is asked for again on
# another connection.
REPLY_WITHIN = 2.0  # seconds; longer than any command waits in the server, but for WAITAOF
# Redis-py may repeat each connect as often within each: 16 tries, which must end before a hang
# alarm does.
REPEATS = 3


def connect(url: str, *, timeout: float = REPLY_WITHIN, repeats: int = REPEATS) -> redis.Redis:
    """A client that answers within about ``timeout`` seconds per try, with decoded responses."""
    # A Unix socket has no such option, and redis-py refuses it there.
    tcp: dict[str, Any] = {} if _is_socket(url) else {"socket_keepalive": True}
    return redis.Redis.from_url(
        without_options(url),
        decode_responses=True,
        # Bytes that are no text are shown, and become a dead letter; they must not fail the read.
        encoding_errors="backslashreplace",
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=15,
        retry=retries(repeats),
        **FEW_QUESTIONS,
        **tls_options(url),
        **tcp,
    )


def retries(repeats: int = REPEATS) -> Retry:
    """Repeat a command so often whose reply did not come, after short waits."""
    return Retry(ExponentialBackoff(base=0.05, cap=0.5), repeats)


def broker_url(url: str) -> str:
    """Convert ``url`` for Celery: ``unix:///p?db=1`` is ``redis+socket:///p?virtual_host=1``.

    `tls_options` are passed beside it.
    """
    if not _is_socket(url):
        return without_options(url)
    parts, options = urlsplit(url), parse_qs(urlsplit(url).query)
    user = parts.username or quote(options.get("username", [""])[0], safe="")
    password = parts.password or quote(options.get("password", [""])[0], safe="")
    credentials = f"{user}:{password}@" if user or password else ""
    database = urlencode({"virtual_host": options.get("db", ["0"])[0]})
    return f"redis+socket://{credentials}{parts.path}?{database}"


def _is_socket(url: str) -> bool:
    return url.startswith("unix://")


# Errors that the server gives as an answer, though they say that it cannot serve now, not that the
# command is wrong.
_AWAY = (
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "UNBLOCKED",
    "OOM",
)


def unavailable(error: BaseException) -> bool:
    """Return whether the store cannot serve now (away, full, failing over). Wait and try again."""
    if isinstance(
        error, redis.ConnectionError | redis.TimeoutError | OutOfMemoryError | ReadOnlyError
    ):
        return True
    # A script adds text of its own around such an answer.
    return isinstance(error, redis.ResponseError) and any(
        word in str(error)[:200] for word in _AWAY
    )


def takes_writes(client: redis.Redis | redis.client.Pipeline, keys: Keys) -> None:
    """Ask for a write that changes nothing, and that the server refuses whenever it refuses any.

    Raises:
        redis.RedisError: the server's refusal, in a pipeline later; ``unavailable`` tells whether
        it may end by itself.
    """
    client.lpushx(keys.nothing, "")


def persistently(seconds: float, call: Any, *arguments: Any) -> Any:
    """Call ``call``, and repeat it while Redis does not answer, for at most ``seconds``."""
    with suppress(redis.RedisError):
        return call(*arguments)  # what counts the tries takes half the time of a call
    retrying = Retrying(
        retry=retry_if_exception_type(redis.RedisError),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        stop=stop_after_delay(seconds),
        before_sleep=before_sleep_log(log, logging.WARNING),
        reraise=True,
    )
    return retrying(call, *arguments)
