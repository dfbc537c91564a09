"""The proxy does what TCP can do and nothing else: each of its faults, as a client of a real Valkey
meets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos.driver.proxy import ChaosProxy, Link
from tests.support.machine import seconds
from tests.support.servers import RedisServer, wait_until

pytestmark = pytest.mark.variant


@pytest.fixture(scope="module")
def proxy(redis_server: RedisServer) -> Iterator[ChaosProxy]:
    with ChaosProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def link(proxy: ChaosProxy, request: pytest.FixtureRequest) -> Link:
    return proxy.link(request.node.name)


def through(link: Link) -> redis.Redis:
    """A client that repeats nothing and waits for a second and a half of an idle machine."""
    return redis.Redis(
        port=link.port,
        socket_timeout=seconds(0.5),
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


def test_a_dropped_reply_follows_a_request_that_arrived(
    client: redis.Redis, proxy: ChaosProxy, link: Link
) -> None:
    with through(link) as app:
        assert app.incr("n") == 1
        proxy.do(lambda: link.drop_replies(True))
        with pytest.raises(redis.TimeoutError):
            app.incr("n")
        wait_until(lambda: client.get("n") == "2", 10, "the request to arrive")
        proxy.do(lambda: link.drop_replies(False))
        assert app.incr("n") == 3, "a new connection hears again"


def test_a_half_open_connection_stays_silent_and_a_new_connection_works(
    client: redis.Redis, proxy: ChaosProxy, link: Link
) -> None:
    with through(link) as app, through(link) as other:
        assert app.incr("n") == 1
        assert proxy.do(link.half_open) == 1
        with pytest.raises(redis.TimeoutError):  # not a ConnectionError: nobody told it
            app.incr("n")
        assert client.get("n") == "1", "what it says goes nowhere"
        assert other.incr("n") == 2


def test_a_paused_link_loses_no_data(client: redis.Redis, proxy: ChaosProxy, link: Link) -> None:
    with through(link) as app:
        assert app.incr("n") == 1
        proxy.do(lambda: link.hold_requests(True))
        with pytest.raises(redis.TimeoutError):
            app.incr("n")
        assert client.get("n") == "1"
        proxy.do(lambda: link.hold_requests(False))
        assert app.incr("n") in (2, 3), (
            "the held request may arrive before it, as a late packet does"
        )


def test_readers_of_a_cut_link_get_an_error(
    client: redis.Redis, proxy: ChaosProxy, link: Link
) -> None:
    with (
        redis.Redis(port=link.port, retry=Retry(NoBackoff(), 0)) as app,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting = thread.submit(app.blpop, ["nothing"], 60)
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, 10, "the client to wait")
        assert proxy.do(link.cut) == 1
        with pytest.raises(redis.ConnectionError):
            waiting.result()
        assert app.incr("n") == 1
