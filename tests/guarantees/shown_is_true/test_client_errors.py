"""An app meets no error of redis-py: each trouble of Redis is one sentence, the one that the
command line says too.
"""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.servers import RedisServer, free_port, wait_until
from tests.unit.coordinator.publishing.test_modes import BY_DAY, Nightly
from unstuck import Client, JobHandle, Settings, Unreachable, UnstuckError
from unstuck.cli.connection import connected
from unstuck.coordinator.store.answers import Submitted
from unstuck.tasks.transport.redis_client import connect

SPEC = {
    "name": "one",
    "groups": [{"name": "g", "spark": False, "steps": [{"python": "some.where:step"}]}],
}
# What each parameter of a public method may be, by its name.
VALUES: dict[str, Any] = {
    "job": "20260101T000000-aaaaaaaa",
    "spec": SPEC,
    "values": {"max_parallel": 2},
    "group": "g",
    "tick": "2026-01-05T02:00:00Z",
    "report": "1-1",
    "name": "nightly",
    "slots": 4,
    "count": 10,
    "most": 10,
    "names": ["nightly"],
    "overdue": 60.0,
    "behind": 600.0,
    "first": "2026-01-01",
    "last": "2026-01-02",
    "seconds": 0.01,
    "id": "1-1",
    "id_": "1-1",
    "report_id": "1-1",
    "by": "ann",
    "dataset": "flights",
    "target": "ops",
    "version": 1,
    "file": "a",
    "task": "unstuck.submit",
    "word": "pause",
    "problem": "schedule/nightly/FAILED",
    "reason": "wrong",
    "arguments": {},
}
NEEDS_NO_REDIS = {"close", "skip_file"}


def asked(room: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each public method of ``room``, ready to be called."""
    for name, _ in inspect.getmembers(type(room), inspect.isfunction):
        if name.startswith("_") or name in NEEDS_NO_REDIS:
            continue
        method, given = getattr(room, name), {}
        for one in inspect.signature(method).parameters.values():
            if one.default is one.empty and one.kind in (
                one.POSITIONAL_OR_KEYWORD,
                one.KEYWORD_ONLY,
            ):
                given[one.name] = VALUES[one.name]
        yield name, lambda method=method, given=given: method(**given)


@pytest.mark.claim("The client raises documented errors only, never an error of the Redis library.")
def test_no_public_method_raises_a_redis_error(tmp_path: Path) -> None:
    url = f"redis://someone:hunter2@127.0.0.1:{free_port()}/0"
    settings = Settings(redis_url=url, warehouse=str(tmp_path / "warehouse"))
    nightly = Nightly(settings.warehouse)
    for job in ("one", "two"):
        nightly.publish(job, BY_DAY, "2013-01-01")
    with Client(settings, redis_client=connect(url, repeats=0)) as client:
        handle = JobHandle(client, Submitted(VALUES["job"], new=True))
        tried = []
        for room in (
            client,
            client.schedules,
            client.pools,
            client.notices,
            client.dead_letters,
            handle,
        ):
            for name, ask in asked(room):
                tried.append(name)
                with pytest.raises(Unreachable) as told:
                    _begun(ask())
                assert isinstance(told.value, UnstuckError)
                assert told.value.code == "REDIS_UNREACHABLE"
                assert isinstance(told.value.__cause__, redis.RedisError)
                assert "hunter2" not in str(told.value)
                assert re.match(
                    r"No Redis answers at redis://someone:\*\*\*@127.0.0.1:\d+/0: .*refused",
                    str(told.value),
                )
                assert "unstuck up" in str(told.value)
        with pytest.raises(Unreachable):
            handle.results  # noqa: B018
    assert {
        "submit",
        "wait",
        "follow",
        "restore",
        "backfill",
        "waiting",
        "replay",
        "read",
        "logs",
        "events",
    } <= {*tried}


def _begun(answer: Any) -> Any:
    return next(answer) if inspect.isgenerator(answer) else answer


@contextmanager
def configured(server: RedisServer, **values: str) -> Iterator[str]:
    with redis.Redis.from_url(server.url, decode_responses=True) as control:
        before = {
            name: control.config_get(name)[name]
            for name in (one.replace("_", "-") for one in values)
        }
        for name, value in values.items():
            control.config_set(name.replace("_", "-"), value)
        try:
            yield server.url
        finally:
            for name, value in before.items():
                control.config_set(name, value)


@contextmanager
def a_wrong_password(server: RedisServer) -> Iterator[str]:
    with redis.Redis.from_url(server.url) as control:
        control.acl_setuser(
            "ann", enabled=True, passwords=["+right"], commands=["+@all"], keys=["*"]
        )
    yield server.url.replace("//", "//ann:hunter2@")


@contextmanager
def no_password(server: RedisServer) -> Iterator[str]:
    with configured(server, requirepass="right") as url:
        yield url


@contextmanager
def too_few_rights(server: RedisServer) -> Iterator[str]:
    with redis.Redis.from_url(server.url) as control:
        control.acl_setuser(
            "bob", enabled=True, passwords=["+right"], commands=["+ping"], keys=["*"]
        )
    yield server.url.replace("//", "//bob:right@")


@contextmanager
def no_such_database(server: RedisServer) -> Iterator[str]:
    yield f"{server.url[:-1]}99"


@contextmanager
def full(server: RedisServer) -> Iterator[str]:
    with configured(server, maxmemory="1") as url:
        yield url


@contextmanager
def too_few_replicas(server: RedisServer) -> Iterator[str]:
    with configured(server, min_replicas_to_write="1") as url:
        yield url


@contextmanager
def read_only(server: RedisServer) -> Iterator[str]:
    with redis.Redis.from_url(server.url, decode_responses=True) as control:
        control.replicaof("127.0.0.1", free_port())
        try:
            yield server.url
        finally:
            control.replicaof("NO", "ONE")


@contextmanager
def no_saves(server: RedisServer) -> Iterator[str]:
    """A server whose last snapshot failed takes no writes."""
    (server.folder / "taken.rdb").mkdir(exist_ok=True)
    with (
        configured(server, save="3600 1", dbfilename="taken.rdb") as url,
        redis.Redis.from_url(url) as control,
    ):
        control.set("one", "1")
        control.bgsave()
        wait_until(
            lambda: control.info("persistence")["rdb_last_bgsave_status"] == "err",
            what="a snapshot to fail",
        )
        yield url
    with redis.Redis.from_url(server.url) as control:
        control.bgsave()
        wait_until(
            lambda: control.info("persistence")["rdb_last_bgsave_status"] == "ok",
            what="a snapshot to succeed",
        )


@contextmanager
def frozen(server: RedisServer) -> Iterator[str]:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield server.url
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextmanager
def tls_where_there_is_none(server: RedisServer) -> Iterator[str]:
    yield server.url.replace("redis:", "rediss:")


TROUBLES: list[tuple[Callable[[RedisServer], Any], str, str]] = [
    (a_wrong_password, "refuses us", "Give the user and password it wants"),
    (no_password, "refuses us", "UNSTUCK_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/0"),
    (too_few_rights, "refuses us", "`unstuck doctor` names the rights"),
    (no_such_database, "has no such database", "such as /0"),
    (full, "is full", "Give it more memory; nothing was changed"),
    (too_few_replicas, "takes no writes while it has too few replicas", "Nothing was changed"),
    (read_only, "is a read-only replica", "Set UNSTUCK_REDIS_URL to the primary"),
    (no_saves, "takes no writes, because it cannot save them", "See its log and its disk"),
    (frozen, "No Redis answers", "Start a local fleet"),
    (tls_where_there_is_none, "TLS", "write redis://"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(
        tmp_path_factory.mktemp("valkey"), options=("--enable-protected-configs", "yes")
    )
    server.start()
    yield server
    server.stop()


@pytest.mark.claim("The client raises documented errors only, never an error of the Redis library.")
@pytest.mark.parametrize(
    ("trouble", "what", "cure"), TROUBLES, ids=[each[0].__name__ for each in TROUBLES]
)
def test_each_client_error_is_one_sentence_with_a_remedy_equal_to_the_command_line(
    server: RedisServer, tmp_path: Path, trouble: Callable[[RedisServer], Any], what: str, cure: str
) -> None:
    with trouble(server) as url:
        settings = Settings(redis_url=url, warehouse=str(tmp_path / "warehouse"))
        said = []
        with Client(settings, redis_client=connect(url, timeout=0.3, repeats=0)) as client:
            with pytest.raises(Unreachable) as told:
                client.submit(SPEC)
            said.append(str(told.value))
        with pytest.raises(Unreachable) as told, connected(settings) as connection:
            connection.client.submit(SPEC)
        said.append(str(told.value))
    for text in said:
        assert what in text
        assert cure in text
        assert "hunter2" not in text
        assert f":{server.port}" in text
        assert "\n" not in text
        assert "script" not in text.lower(), "nobody need know that it is one"
    # Which command of Redis was the first that it refused, is theirs.
    assert len({re.sub("'[a-z]+' command", "", text) for text in said}) == 1


def test_a_client_continues_after_an_outage(server: RedisServer, tmp_path: Path) -> None:
    with Client(Settings(redis_url=server.url, warehouse=str(tmp_path / "warehouse"))) as client:
        with full(server), pytest.raises(Unreachable):
            client.submit(SPEC, key="k")
        assert client.submit(SPEC, key="k").new
