"""The exporter over HTTP, with real sockets and a real Redis that goes away and comes back."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.servers import RedisServer, wait_until
from unstuck import BadRequest, Settings
from unstuck.cli.ops.metrics import serve_at
from unstuck.metrics import scrape
from unstuck.metrics.scrape import Exporter
from unstuck.tasks.transport.redis_client import connect

# As Prometheus asks.
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@contextmanager
def served(url: str) -> Iterator[str]:
    """The address of an exporter for the Redis at ``url``."""
    with connect(url, timeout=2.0, repeats=0) as client:
        server, thread = serve_at("127.0.0.1:0", Exporter(client, Settings(redis_url=url)))
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def get(address: str) -> str:
    asked = urllib.request.Request(f"{address}/metrics", headers={"Accept": ACCEPT})
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return str(answer.read().decode())


def test_an_absent_redis_is_up_0_and_its_return_is_detected(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with served(server.url) as address:
        assert "unstuck_up 1.0" in get(address)
        server.stop()
        away = get(address)
        assert "unstuck_up 0.0" in away
        assert "unstuck_jobs" not in away, "no figure is shown that nobody has read"
        server.start()
        assert "unstuck_up 1.0" in get(address)
    server.stop()


def test_a_silent_client_does_not_block_a_scrape(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with served(redis_server.url) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET /metrics HTT")
            assert "unstuck_up 1.0" in get(address)


def test_concurrent_scrapes_share_one_computation(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, computed = threading.Event(), threading.Event(), []
    read = scrape.scrape

    def slow(*arguments: Any) -> object:
        computed.append(1)
        began.set()
        assert go_on.wait(60)
        return read(*arguments)

    monkeypatch.setattr(scrape, "scrape", slow)
    exporter = Exporter(client, Settings(redis_url=redis_server.url))
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(exporter.collect)
        assert began.wait(60)
        others = [pool.submit(exporter.collect) for _ in range(3)]
        wait_until(
            lambda: all(one.running() for one in others), 60, "the other scrapes to have begun"
        )
        go_on.set()
        found = {id(one.result()) for one in [first, *others]}
    assert len(found) == len(computed)
    assert len(computed) < 4
    exporter.collect()
    assert len(computed) == len(found) + 1, "a later scrape reads anew"


@pytest.mark.parametrize(
    "address", ["nowhere", ":x", "127.0.0.1:99999999", "no.such.host.invalid:1"]
)
def test_an_unusable_address_is_refused_with_its_name(address: str) -> None:
    with (
        connect("redis://127.0.0.1:1") as client,
        pytest.raises(
            BadRequest,
            match=r"no address to listen at|cannot be served at no\.such\.host\.invalid:1",
        ),
    ):
        serve_at(address, Exporter(client, Settings()))
