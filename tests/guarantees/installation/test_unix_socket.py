"""A Redis that is reached by a socket in the file system, as the command line itself recommends for
one host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import Cli
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size
from unstuck.tasks.transport.redis_client import broker_url, connect


@pytest.fixture
def address() -> Iterator[str]:
    # Not below the folder of the test: the path of a socket has at most about 100 characters.
    with tempfile.TemporaryDirectory(prefix="unstuck-") as short:
        server = RedisServer(Path(short), options=("--unixsocket", f"{short}/s"))
        server.start()
        with redis.Redis(port=server.port) as control:
            control.config_set("requirepass", "p@w")
        yield f"unix://{short}/s?db=3&password=p%40w"
        server.stop()


@pytest.mark.variant
def test_a_fleet_on_a_unix_socket_runs_a_job(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinator, beat, worker, client and command line: all of them, with the one address."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("UNSTUCK_WAREHOUSE", str(tmp_path / "warehouse"))
    steps = [{"python": "fleet_steps:my_pid"}]
    with LocalFleet(Size(workers=0, light_slots=1), tmp_path / "home", address) as fleet:
        fleet.wait_ready()
        with Client(Settings(redis_url=address, warehouse=str(tmp_path / "warehouse"))) as client:
            job = client.submit(
                {"name": "local", "groups": [{"name": "g", "spark": False, "steps": steps}]}
            ).id
            wait_until(
                lambda: client.show(job).status is Status.FINISHED, 30, "the job to be FINISHED"
            )
        shown = Cli(address, tmp_path)("show", job)
        assert (shown.returncode, "FINISHED" in shown.stdout) == (0, True), shown.stderr
        with connect(address) as store:
            assert store.connection_pool.connection_kwargs["db"] == 3
            both = ("unstuck:processes", "unstuck:beat::lock")
            wait_until(lambda: store.exists(*both) == 2, 30, "all in the database asked for")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("rediss://:pw@h/2", "rediss://:pw@h/2"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock?virtual_host=0"),
        (
            "unix:///run/r.sock?db=3&password=p%40w",
            "redis+socket://:p%40w@/run/r.sock?virtual_host=3",
        ),
        ("unix://me:p%40w@/run/r.sock", "redis+socket://me:p%40w@/run/r.sock?virtual_host=0"),
    ],
)
def test_celery_uses_the_same_unix_socket_address(url: str, said: str) -> None:
    assert broker_url(url) == said
