"""A coordinator whose Celery hears nothing any more ends itself, as a worker does: submits and
commands wait for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.paths import ROOT
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck import Client, Settings
from unstuck.doctor.finding import Level
from unstuck.doctor.fleet_checks import of_problems
from unstuck.tasks.protocol.keys import Keys

STALLED_AFTER = 1.0
SPEC = {
    "name": "foreign",
    "groups": [{"name": "g", "spark": False, "steps": [{"python": "examples.noop:noop"}]}],
}


# As after some of the faults that kombu has had: connected, and asking for nothing, from when the
# file is there.
MAIN = """
import os, sys
import kombu.transport.redis as transport
start = transport.Channel._brpop_start
transport.Channel._brpop_start = lambda *args, **more: None if os.path.exists("stall") else start(*args, **more)
sys.argv = ["celery", "-A", "unstuck.coordinator", "worker", "-P", "threads", "-l", "INFO"]
from celery.__main__ import main
main()
"""


@contextmanager
def coordinator(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One real coordinator, and its log. No beat: nothing comes but what the test sends."""
    log = folder / "coordinator.log"
    terms = {
        "UNSTUCK_STALLED_AFTER": f"{STALLED_AFTER}s",
        "UNSTUCK_WAREHOUSE": str(folder / "w"),
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN],
            env={**os.environ, **terms, "UNSTUCK_REDIS_URL": url},
            cwd=folder,
            stdout=out,
            stderr=out,
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.claim("A worker or coordinator that stalls ends itself, and a busy one does not.")
def test_only_a_stalled_coordinator_ends_itself(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its reports are still read and its sweeps done; only what comes through Celery is not
    heard.
    """
    app = app_of_strangers(redis_server.url)
    app.conf.task_default_exchange = ""

    def submit(key: str) -> None:
        app.send_task("unstuck.submit", kwargs={"spec": SPEC, "key": key}, queue="control")

    settings = Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "w"))
    with coordinator(redis_server.url, tmp_path) as (process, log), Client(settings) as people:
        # Given: one that hears, and that is left in peace for more than twice the time.
        wait_until(
            lambda: " ready." in log.read_text() or process.poll() is not None, 60, "it to be ready"
        )
        submit("first")
        wait_until(
            lambda: people.jobs() or process.poll() is not None, 60, "the submit to be heard"
        )
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 2.2 * STALLED_AFTER or process.poll() is not None, 30
        )
        assert process.poll() is None, log.read_text()[-2000:]

        # When: Celery listens no more.
        (tmp_path / "stall").touch()
        for key in ("second", "third"):  # it may still have been asking for the first of them
            submit(key)

        # Then: it ends as a failure, so that its supervisor starts another, which hears what waits.
        assert process.wait() == os.EX_SOFTWARE, log.read_text()[-2000:]
        assert re.search(
            r"has stalled: for \ds it has received nothing from control", log.read_text()
        )
        assert client.llen(Keys().queue("control")) >= 1
        view = people.fleet()
    app.close()
    assert [one.worker.rpartition(":")[2] for one in view.stalled] == [str(process.pid)]
    assert [one.level for one in of_problems((), view) if one.code == "STALLED"] == [Level.WARNING]
