"""Messages that no Celery app sends, on the queues of a fleet: each is dropped and told, and nobody
ends or stops.

One real worker and one real coordinator for all of it. Then a message that is one is handled by the
same processes.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck.tasks.protocol.keys import Keys

TO = {
    "worker": ("light", "unstuck.run", ["light"]),
    "coordinator": ("control", "unstuck.pause", ["20131231T235959-a"]),
}
COMMANDS = {
    "worker": ["unstuck.tasks", "worker", "-Q", "light", "-c", "4"],
    "coordinator": ["unstuck.coordinator", "worker", "-P", "threads"],
}
ODD: list[Any] = [
    *(
        None,
        True,
        1e308,
        10**30,
        "",
        "\x1b]0;title\x07",
        "x" * 100_000,
        [],
        ["a"],
        [[1]],
        [1, 2, 3],
        {},
    ),
    *({"a": [{}]}, json.loads("[" * 60 + "]" * 60), json.loads("[" * 940 + "]" * 940)),
]
NO_JSON = {
    "text": b"garbage",
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\x00",
    "the half of a message": b'{"body": "W10=", "prop',
    "nested too deep": b"[" * 200_000 + b"]" * 200_000,
    "a value that kombu makes an object of": b'{"__type__": "uuid", "__value__": {}}',
    "an unknown kind of object": b'{"__type__": [], "__value__": {}}',
    "of 65 MiB": b'{"body": "' + b"x" * 65 * 1024 * 1024 + b'"}',
}


@dataclass
class Program:
    """A process that takes Celery messages, and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    store: redis.Redis

    @property
    def queue(self) -> str:
        return Keys("unstuck").queue(TO[self.name][0])

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def push(self, *raw: bytes) -> None:
        for one in raw:
            self.store.lpush(self.queue, one)

    def handles_a_message(self) -> None:
        """The same process, after all that has come before."""
        made = whole(self.name)
        marked = made["headers"]["id"]
        self.push(json.dumps(made).encode())

        def handled() -> bool:
            assert self.process.poll() is None, f"the {self.name} has ended: {self.text()[-2000:]}"
            text = self.text()
            return any(f"{marked}] {end}" in text for end in ("succeeded", "raised"))

        wait_until(handled, 60, f"the {self.name} to handle a message")


def whole(name: str) -> dict[str, Any]:
    """A message as Celery sends it."""
    queue, task, args = TO[name]
    no_limits: dict[str, Any] = {
        "timelimit": [None, None],
        "eta": None,
        "expires": None,
        "retries": 0,
        "stamped_headers": None,
    }
    named = {
        "lang": "py",
        "task": task,
        "id": str(uuid.uuid4()),
        "shadow": None,
        "compression": None,
    }
    return {
        "body": _body(
            [args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
        ),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            **named,
            **no_limits,
            "group": None,
            "root_id": None,
            "argsrepr": "()",
            "origin": "gen1@here",
        },
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": str(uuid.uuid4()),
            "priority": 0,
        },
    }


def _body(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def changed(name: str) -> Iterator[bytes]:
    """Messages of which one value is left out or odd: of the envelope, and of the body in both of
    its forms.
    """
    for place in _places(whole(name)):
        for odd in ODD:
            yield _dumped(_with(whole(name), place, odd))
        if place:
            yield _dumped(_with(whole(name), place))
    first = {
        "task": TO[name][1],
        "id": "1",
        "args": [],
        "kwargs": {},
    }  # of Celery's first protocol, all in the body
    for body, headers in (([TO[name][2], {}, {"chain": None}], None), (first, {})):
        for place in _places(body):
            for odd in ODD:
                made = {**whole(name), "body": _body(_with(body, place, odd))}
                yield _dumped(made if headers is None else {**made, "headers": headers})
    for place, values in {
        ("content-type",): [
            "application/x-python-serialize",
            "application/x-yaml",
            "text/plain",
            "application/data",
        ],
        ("content-encoding",): ["utf-16", "binary", "rot13", "\0"],
        ("headers", "compression"): ["gzip", "none", 5, ["x"]],
        ("properties", "body_encoding"): ["none", "utf-8", 5],
        ("headers", "task"): ["unstuck.unknown", "celery.chord", "celery.map"],
        ("body",): ["no base64!", _body("garbage"), base64.b64encode(b"garbage").decode()],
    }.items():
        for value in values:
            yield _dumped(_with(whole(name), place, value))


def _none(listed: dict[str, list[Any]] | None) -> bool:
    return list((listed or {}).values()) == [[]]


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        yield from _places(part, (*above, key))


def _with(value: Any, place: tuple[Any, ...], *odd: Any) -> Any:
    """``value`` with another one in ``place``, or none."""
    if not place:
        return odd[0]
    made = value.copy()
    if len(place) > 1 or odd:
        made[place[0]] = _with(value[place[0]], place[1:], *odd)
    else:
        del made[place[0]]
    return made


def _dumped(message: Any) -> bytes:
    return json.dumps(message).encode()


@pytest.fixture(scope="module")
def programs(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Program]]:
    folder = tmp_path_factory.mktemp("odd")
    env = {name: value for name, value in os.environ.items() if not name.startswith("UNSTUCK_")}
    env |= {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_WAREHOUSE": str(folder / "warehouse")}
    env |= {"PYTHONPATH": PYTHONPATH, "UNSTUCK_SPARK_MASTER": "none"}
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
        made = {}
        for name, command in COMMANDS.items():
            with open(folder / name, "wb") as log:
                called = [sys.executable, "-m", "celery", "-A", *command, "-n", name, "-l", "INFO"]
                process = subprocess.Popen(called, env=env, cwd=folder, stdout=log, stderr=log)
            made[name] = Program(name, process, folder / name, store)
        try:
            for program in made.values():
                program.handles_a_message()
            yield made
        finally:
            for program in made.values():
                program.process.kill()
                program.process.wait()


@pytest.fixture(params=list(TO))
def program(programs: dict[str, Program], request: pytest.FixtureRequest) -> Program:
    return programs[request.param]


@pytest.mark.variant
@pytest.mark.parametrize("raw", NO_JSON.values(), ids=list(NO_JSON))
def test_invalid_json_is_dropped_and_logged_once(program: Program, raw: bytes) -> None:
    before = len(program.text())
    program.push(raw)
    program.handles_a_message()
    told = [
        line for line in program.text()[before:].splitlines() if "a malformed message on" in line
    ]
    assert len(told) == 1
    assert f"a malformed message on {TO[program.name][0]} is dropped: " in told[0]
    assert f"It begins with {raw[:20]!r}"[:-1] in told[0]
    assert len(told[0]) < 1000


@pytest.mark.variant
def test_malformed_envelopes_and_bodies_end_no_process_and_are_removed(
    program: Program, redis_server: RedisServer
) -> None:
    before = len(program.text())
    odd = list(changed(program.name))
    for first in range(0, len(odd), 100):
        program.push(*odd[first : first + 100])
        program.handles_a_message()
    told = program.text()[before:]
    assert told.count("is dropped") > 100
    assert max(map(len, told.splitlines())) < 20_000
    assert "\x1b]0;" not in told
    assert "consumer: Connection to broker lost" not in told, (
        "the message was taken for a lost connection"
    )
    wait_until(
        lambda: program.store.hlen("unstuck:celery:unacked") == 0,
        20,
        "no message to be kept for later",
    )
    with closing(app_of_strangers(redis_server.url)) as app:
        asked = app.control.inspect([f"celery@{program.name}"], timeout=5)
        wait_until(
            lambda: _none(asked.reserved()) and _none(asked.active()),
            20,
            "no slot to be taken for ever",
        )
