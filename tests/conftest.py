"""One real Valkey per test process, so that a flush is safe; conditions awaited, never slept
for.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import settings

from tests.support.network.lost_replies import losing_client
from tests.support.network.s3_server import S3Server, SeaweedFS
from tests.support.servers import RedisServer
from tests.support.spark.spark_classes import java_options

if TYPE_CHECKING:
    from tests.support.coordinator import Coordinator
    from unstuck.testing.shared_spark import SharedSpark


pytest_plugins = [
    f"tests.support.suite.{name}" for name in ("logging_kept", "order", "suite_limits")
]
os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())
settings.register_profile(
    "busy machine", deadline=None
)  # a test is not wrong because it was slow once
settings.load_profile("busy machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What was imported and collected stays until the end: it is not looked through, now or
    later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says what its workers were at."""
    report = yield
    if report.failed:
        from tests.support import fleet

        for worker in fleet.RUNNING:
            report.sections.append((f"worker {worker.process.pid}", worker.story()))
    return report


_pools: weakref.WeakSet[redis.ConnectionPool] = weakref.WeakSet()
_init_pool = redis.ConnectionPool.__init__


def _init_and_remember(pool: redis.ConnectionPool, *arguments: Any, **options: Any) -> None:
    _init_pool(pool, *arguments, **options)
    _pools.add(pool)


redis.ConnectionPool.__init__ = _init_and_remember  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """Else a connection that a test has left in a cycle of objects fails the later test in which it
    is collected.
    """
    yield
    for pool in list(_pools):
        pool.disconnect(inuse_connections=False)


@pytest.fixture(scope="module", autouse=True)
def no_second_copy() -> Iterator[None]:
    """``tasks`` and ``coordinator`` are imported as parts of ``unstuck`` only."""
    yield
    assert not {"tasks", "coordinator"} & sys.modules.keys()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def _unstuck_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """The session of `unstuck.testing`, for one file alone: other files start and stop sessions of
    their own.
    """
    from unstuck.testing.shared_spark import SharedSpark

    shared = SharedSpark(tmp_path_factory.mktemp("unstuck-spark"))
    yield shared
    shared.stop()


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket, which this process can reach."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server.make_bucket()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client on an empty store."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def lossy(client: redis.Redis, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client on the empty store, which loses replies once it is armed (``lost_replies.py``)."""
    with losing_client(redis_server.port) as lossy:
        yield lossy


@pytest.fixture
def make_coordinator(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> Callable[..., Coordinator]:
    """Makes coordinators on the empty store, each with settings of its own
    (``coordinator.Coordinator``).
    """
    from tests.support.coordinator import Coordinator

    def make(**overrides: Any) -> Coordinator:
        return Coordinator(redis_server.url, tmp_path / "warehouse", **overrides)

    return make


@pytest.fixture
def coordinator(make_coordinator: Callable[..., Coordinator]) -> Coordinator:
    """One coordinator on the empty store."""
    return make_coordinator()
