"""The loader of Lua scripts: names in a script are the names in its header, and Python passes each
of them.
"""

from __future__ import annotations

import re
import signal
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from tests.support.network.proxy import Proxy
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script, ask, load
from unstuck.tasks.transport.redis_client import connect

PACKAGES = ("unstuck.tasks.transport", "unstuck.coordinator.store")
FOLDERS = {package: Path(str(files(package))) / "lua" for package in PACKAGES}
SCRIPTS = [
    (package, str(path.relative_to(folder).with_suffix("")))
    for package, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.lua"))
]


@pytest.mark.parametrize(("package", "name"), SCRIPTS, ids=[name for _, name in SCRIPTS])
def test_a_script_declares_exactly_its_keys_and_arguments(package: str, name: str) -> None:
    text = (FOLDERS[package] / f"{name}.lua").read_text()
    assert not re.search(r"\b(KEYS|ARGV)\b", text), "by name, never by number"
    loaded, keys, args = load(package, name)  # a name that is not declared would be refused
    numbered = {(table, int(n)) for table, n in re.findall(r"\b(KEYS|ARGV)\[(\d+)\]", loaded)}
    assert numbered == {
        (table, n)
        for table, names in (("KEYS", keys), ("ARGV", args))
        for n in range(1, len(names) + 1)
    }


def test_additional_and_missing_names_are_refused(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        tick = Script(client, Keys("named"), "unstuck.coordinator.store", "note_sweep")
        with pytest.raises(TypeError, match="grace"):
            tick(period=1, lease_ttl=2, grace=3)
        with pytest.raises(TypeError, match="lease_ttl"):
            tick(period=1)
        assert len(tick(period=1, lease_ttl=2)) == 2


def test_a_script_unknown_to_the_server_is_loaded_again(redis_server: RedisServer) -> None:
    with connect(redis_server.url) as client:
        tick = Script(client, Keys("forgotten"), "unstuck.coordinator.store", "note_sweep")
        tick(period=1, lease_ttl=2)
        client.script_flush()
        assert len(tick(period=1, lease_ttl=2)) == 2


def test_a_call_whose_reply_was_lost_is_sent_again(redis_server: RedisServer) -> None:
    proxy = Proxy(redis_server.port)
    try:
        with connect(proxy.url) as client:
            tick = Script(client, Keys("lost"), "unstuck.coordinator.store", "note_sweep")
            tick(period=1, lease_ttl=2)
            proxy.lose(0.3, silent=False)
            assert [len(tick(period=1, lease_ttl=2)) for _ in range(12)] == [2] * 12
    finally:
        proxy.close()
    assert proxy.lost > 0


def test_a_call_interrupted_by_a_signal_leaves_no_reply_for_the_next_call(
    redis_server: RedisServer,
) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connect(redis_server.url) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                ask(client, ("BLPOP", "none", 0.3), ("ECHO", "of the first"))
            assert ask(client, ("ECHO", "of the second")) == ["of the second"]
    finally:
        signal.signal(signal.SIGALRM, before)
