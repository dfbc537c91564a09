"""A Redis user with few rights: the line of the page is enough, and who lacks a right says which
and ends.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import Cli
from tests.guarantees.installation.test_tls import PROGRAMS, ends
from tests.support import fleet as fleets
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.rights import COMMANDS, DOCTOR, lacking_rights

LINE = re.search(
    r"^ACL SETUSER unstuck .*$", (ROOT / "docs" / "operate.md").read_text(), re.MULTILINE
)
# The log in, what this test itself asks, and what the list leaves to the code beside it.
NOT_LISTED = {
    "auth",
    "hello",
    "select",
    "client",
    "acl",
    "config",
    "wait",
    "waitaof",
    "multi",
    "exec",
    "discard",
}
NOT_LISTED |= {
    "watch",
    "unwatch",
    "publish",
    "subscribe",
    "unsubscribe",
    "psubscribe",
    "punsubscribe",
}


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[redis.Redis]:
    server = RedisServer(tmp_path)
    server.start()
    with redis.Redis(port=server.port, decode_responses=True) as made:
        yield made
    server.stop()


def allow(admin: redis.Redis, *more: str) -> str:
    """Make the user of the page, changed by ``more``; the address with it."""
    assert LINE is not None
    admin.execute_command(*LINE[0].replace("PASSWORD", "p%w").split(), *more)
    return f"redis://unstuck:p%25w@127.0.0.1:{admin.connection_pool.connection_kwargs['port']}/0"


@pytest.mark.claim("The documented Redis ACL is sufficient for a whole fleet.")
def test_the_documented_acl_line_suffices_for_a_whole_fleet(
    admin: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = allow(admin)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", str(tmp_path / "warehouse"))
    admin.execute_command("CONFIG", "RESETSTAT")
    group = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
    waits = {**group, "queue": "nobody"}
    with LocalFleet(Size(workers=0, light_slots=1), tmp_path / "home", url) as fleet:
        assert fleet.wait_ready()
        with Client(Settings(redis_url=url, warehouse=str(tmp_path / "warehouse"))) as client:
            done = client.submit({"name": "done", "groups": [group]}).id
            left = client.submit({"name": "left", "groups": [waits]}).id
            assert client.wait(done).status is Status.FINISHED
            client.cancel(left)
            assert client.wait(left).status is Status.CANCELED
        wait_until(lambda: admin.exists("unstuck:beat::lock"), 30, "beat to hold its lock")
        cli = Cli(url, tmp_path)
        said = cli("doctor").stdout
        assert "REDIS_RIGHTS: the user of the address has each right" in said
        for command in (
            ("fleet",),
            ("why", done),
            ("events", done),
            ("dead", "list"),
            ("pool", "set", "x", "2"),
        ):
            assert cli(*command).returncode == 0
        inspect = [sys.executable, "-m", "celery", "-A", "unstuck.tasks", "inspect", "ping"]
        environ = {**cli.env, "PYTHONPATH": PYTHONPATH}
        pong = subprocess.run(
            inspect, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
        assert "pong" in pong.stdout
    # A stray message is looked for in a queue that no fleet has, and the append-only file in the
    # configuration.
    refused = {(one["reason"], one["object"]) for one in admin.acl_log()}
    assert refused <= {("key", "control"), ("command", "config|get")}
    listed = {one.split(" ")[0].lower() for one in [*re.split(r"[|\n]", COMMANDS.strip()), *DOCTOR]}
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in admin.info("commandstats")}
    assert used - NOT_LISTED - listed == set()


@pytest.mark.parametrize(
    ("more", "lacks"),
    [
        ("", []),
        ("-multi", ["+multi"]),
        ("-xadd -script|load -watch", ["+watch", "+xadd", "+script|load"]),
        ("-discard -brpop", ["+brpop", "+discard"]),
        ("-exec", ["+exec"]),
        ("resetchannels", ["&unstuck:*", "&unstuck:celery:/0.celery.pidbox"]),
        ("resetchannels &unstuck:*", ["&unstuck:celery:/0.celery.pidbox"]),
        ("resetkeys ~unstuck:nothing %R~unstuck:*", ["~unstuck:*"]),
        ("-info", ["+info"]),
    ],
)
def test_each_missing_permission_is_named_and_the_check_changes_nothing(
    admin: redis.Redis, more: str, lacks: list[str]
) -> None:
    with connect(allow(admin, *more.split())) as client:
        assert lacking_rights(client, Keys(), DOCTOR) == lacks
    assert admin.keys() == []
    admin.execute_command("ACL", "SETUSER", "unstuck", *lacks)
    with connect(allow(admin)) as client:
        assert lacking_rights(client, Keys(), DOCTOR) == []


@pytest.mark.variant
def test_a_program_that_cannot_take_work_ends_and_names_the_missing_permissions(
    admin: redis.Redis, tmp_path: Path
) -> None:
    url = allow(admin, "-brpop", "-xreadgroup")
    for program in PROGRAMS:
        said = ends(program, tmp_path, UNSTUCK_REDIS_URL=url)
        assert "It could take no work here, so it ends" in said
        assert "redis-cli ACL SETUSER unstuck +brpop +xreadgroup" in said
        assert "p%" not in said
    assert admin.exists("unstuck:processes") == 0


@pytest.mark.variant
def test_a_revoked_permission_ends_a_running_worker(admin: redis.Redis, tmp_path: Path) -> None:
    with fleets.worker(allow(admin), tmp_path) as worker:
        wait_until(lambda: admin.hlen("unstuck:processes"), 30, "the runner to be listed")
        admin.execute_command("ACL", "SETUSER", "unstuck", "-brpop")
        wait_until(lambda: worker.process.poll() is not None, 60, "the worker to end")
        assert worker.process.poll() == 5, worker.text()
        assert "redis-cli ACL SETUSER unstuck +brpop" in worker.text()


def test_doctor_names_missing_permissions(admin: redis.Redis, tmp_path: Path) -> None:
    done = Cli(allow(admin, "-xadd"), tmp_path)("doctor")
    assert done.returncode == 5
    assert (
        "problem  REDIS_RIGHTS: The user unstuck of the Redis at redis://unstuck:***@"
        in done.stdout
    )
    assert "ACL SETUSER unstuck +xadd" in done.stdout
