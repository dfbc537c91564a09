"""Converts errors of Redis to `Unreachable`, with a sentence for users."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from unstuck.coordinator.errors import Unreachable
from unstuck.coordinator.fleet_address import DEFAULT_HOME, address_file, address_of
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.refusals import perhaps_tls, refusal

T = TypeVar("T")

ANSWER_TIMEOUT = 2.0  # seconds for the first answer
REPEATS = 1  # of a request on a connection that has answered before
ELSEWHERE = (
    "Start a local fleet with `unstuck up`, or set UNSTUCK_REDIS_URL to the Redis of your fleet."
)
# By the class of redis-py, or by the word of the server: there is no class where a script adds text
# around the answer.
_ANSWERS = (
    (
        "ReadOnlyError|READONLY",
        "is a read-only replica. Set UNSTUCK_REDIS_URL to the primary; nothing was changed.",
    ),
    ("BusyLoadingError|LOADING", "is still loading its data. Try again in a moment."),
    ("OutOfMemoryError|OOM", "is full: {message}. Give it more memory; nothing was changed."),
    (
        "MISCONF",
        "takes no writes, because it cannot save them: {message}. See its log and its disk.",
    ),
    (
        "NOREPLICAS",
        "takes no writes while it has too few replicas: {message}. Nothing was changed.",
    ),
    (
        "MasterDownError|MASTERDOWN",
        "is a replica that has lost its primary. Set UNSTUCK_REDIS_URL to the primary.",
    ),
    (
        "max number of clients",
        "has no connection left: {message}. Raise its maxclients, or close other clients.",
    ),
    (
        "DB index is out of range|SELECT is not allowed in cluster",
        (
            "has no such database: {message}. End UNSTUCK_REDIS_URL with the number of one that it "
            "has, such as /0."
        ),
    ),
)


def unreachable(url: str, error: redis.RedisError, otherwise: str = "") -> Unreachable:
    """Return the error for an error of the Redis at ``url``.

    ``otherwise``: the advice if it does not answer.
    """
    place = f"The Redis at {without_password(url)}"
    # A script adds its digest and line.
    message = re.sub(r"\.? script: .*", "", str(error).strip()).rstrip(".") or type(error).__name__
    if why := refusal(url, error):
        return Unreachable(why)
    for pattern, sentence in _ANSWERS:
        if re.search(rf"\b({pattern})\b", f"{type(error).__name__} {message}"):
            return Unreachable(f"{place} {sentence.format(message=message)}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        helps = otherwise or _advice(url)
        return Unreachable(
            f"No Redis answers at {without_password(url)}: {message}. "
            f"{perhaps_tls(url, error)}{helps}"
        )
    return Unreachable(f"{place} answered with an error: {message}")


def _advice(url: str) -> str:
    """The cure where nothing answers."""
    home = DEFAULT_HOME.resolve()
    if url != address_of(home):
        return ELSEWHERE
    return (
        "The fleet of this folder was started there and has not ended in good order "
        f"({address_file(home)}): start it again with `unstuck up`, or set UNSTUCK_REDIS_URL to "
        "the Redis of another fleet. No other was asked."
    )


@contextmanager
def answering(url: str, otherwise: str = "") -> Iterator[redis.Redis]:
    """Connect to the Redis at ``url`` for a block, with answers or an error within five seconds.

    Args:
        otherwise: the advice if Redis does not answer, instead of the usual.

    Raises:
        Unreachable: Redis did not answer, or answered with an error, in the block or before it.
    """
    with connect(url, timeout=ANSWER_TIMEOUT, repeats=0) as client:
        try:
            # Without repeats: redis-py multiplies those of the connection with those of the
            # request, so a frozen server would hold a person for four times the timeout.
            client.ping()
            client.set_retry(Retry(ExponentialBackoff(base=0.05, cap=0.5), REPEATS))
            yield client
        except redis.RedisError as error:
            raise unreachable(url, error, otherwise) from error


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise unreachable(url, error) from error


def in_sentences(room: T, url: str) -> T:
    """Make the public methods of ``room`` raise `Unreachable` for errors of the Redis at ``url``.

    Only this object is changed. Inside, the coordinator distinguishes an outage from a refusal by
    the errors of redis-py.
    """
    for name, method in inspect.getmembers(room, inspect.ismethod):
        if not name.startswith("_"):
            is_generator = inspect.isgeneratorfunction(method)
            setattr(
                room, name, _telling_generator(method, url) if is_generator else _told(url)(method)
            )
    return room


def _telling_generator(
    method: Callable[..., Iterator[Any]], url: str
) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def ask(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _told(url):
            yield from method(*arguments, **named)

    return ask
