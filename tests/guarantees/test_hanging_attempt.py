"""What hangs before the first step or after the last one, where no `timeout:` of the user's counts: it ends too.

A FIFO in the place of a file stands for a mount whose server is gone: whoever opens it waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleet
import redis
from fleet_steps import hang
from lone_runner import lone_runner
from servers import RedisServer

from tasks.filesystem import Files
from tasks.marker import Marker, write_marker
from tasks.report import Failure, OutcomeKind
from tasks.token import Hint

SOON = {"UNSTUCK_WAREHOUSE_TIMEOUT": "2s"}
# Spark's own hangs so where a streaming query does not stop, but takes many seconds to come to that.
SESSION_THAT_CANNOT_BE_LEFT = """
import threading
from contextlib import contextmanager
class Driver:
    pids, application = [], {}
    def start(self): ...
    def cancel(self, tag): ...
    @contextmanager
    def attempt(self, tag, conf):
        try:
            yield object()
        finally:
            threading.Event().wait()
runner.driver = Driver()
"""


def offer(store: redis.Redis, folder: Path, step: str = "my_pid", **more: Any) -> Hint:
    spec = {"name": "g", "spark": False, "steps": [{"python": f"fleet_steps:{step}", "params": more.pop("given", {})}]}
    return fleet.offer(store, folder / "warehouse", "job", spec, send=False, **more)


def hung(store: redis.Redis, server: RedisServer, folder: Path, hint: Hint) -> Failure:
    """What is on the record of an attempt that hung: its watchdog has said it, and has killed its runner."""
    with lone_runner(server.url, folder, hint, environ=SOON) as runner:
        outcome = fleet.outcome(store, hint, 60)
        assert outcome.kind is OutcomeKind.FAILED, outcome
        assert runner.process.wait(10) < 0, "it was killed"
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("WAREHOUSE_TIMEOUT", True)
    assert f"the warehouse {folder / 'warehouse'} on " in outcome.failure.text
    assert "no answer for 2s (UNSTUCK_WAREHOUSE_TIMEOUT)" in outcome.failure.text
    return outcome.failure


def test_a_warehouse_that_hangs_when_it_is_opened_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    hint = offer(client, tmp_path)
    hang(tmp_path / "warehouse" / "_warehouse_id")
    assert hung(client, redis_server, tmp_path, hint).text.startswith("opening")


def test_a_warehouse_that_hangs_when_an_input_is_read_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    hint = offer(client, tmp_path, inputs={"a": ["_staging/job/a/1-n-c"]})
    (tmp_path / "warehouse" / "_staging/job/a/1-n-c").mkdir(parents=True)
    hang(tmp_path / "warehouse" / "_staging/job/a/1-n-c/_marker.json")
    assert hung(client, redis_server, tmp_path, hint).text.startswith("reading what the group needs")


def test_a_warehouse_that_hangs_when_the_marker_is_written_ends_the_attempt_though_its_log_hangs_too(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    hint = offer(client, tmp_path, "warehouse_hangs", given={"warehouse": str(tmp_path / "warehouse")})
    assert hung(client, redis_server, tmp_path, hint).text.startswith("writing the marker")


def test_a_warehouse_that_hangs_after_a_failure_ends_the_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    given = {"warehouse": str(tmp_path / "warehouse"), "then": "fail"}
    assert (
        "after the attempt ended"
        in hung(client, redis_server, tmp_path, offer(client, tmp_path, "warehouse_hangs", given=given)).text
    )


def test_a_warehouse_that_is_slow_and_answers_is_no_hang(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Many answers take longer together than one may: a join of a wide fork on an object store."""
    folders = [f"_staging/job/a/{n}-n-c" for n in range(1, 21)]
    hint = offer(client, tmp_path, inputs={"a": folders})
    files = Files(str(tmp_path / "warehouse"))
    for folder in folders:
        write_marker(files, folder, Marker(f"job/a/{folder}", "f", {}, {}, {}, 0.0))
    slow = """
import time
from pathlib import Path
fast = Path.read_bytes
Path.read_bytes = lambda path: (time.sleep(0.15), fast(path))[1]
"""
    with lone_runner(redis_server.url, tmp_path, hint, prepared=slow, environ=SOON) as runner:
        assert runner.said() == ["succeeded APPLIED"]


def test_a_session_that_cannot_be_left_ends_the_attempt_whose_marker_stands(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    spec = {"name": "g", "steps": [{"python": "fleet_steps:my_pid"}]}
    hint = fleet.offer(client, tmp_path / "warehouse", "job", spec, send=False)
    environ = {"UNSTUCK_SESSION_TIMEOUT": "1s"}
    with lone_runner(redis_server.url, tmp_path, hint, prepared=SESSION_THAT_CANNOT_BE_LEFT, environ=environ):
        failure = fleet.outcome(client, hint, 60).failure
    assert failure is not None
    assert (failure.code, failure.recoverable) == ("SESSION_TIMEOUT", True)
    assert failure.text.startswith("leaving the Spark session on ")
    assert list((tmp_path / "warehouse").glob("_staging/job/g/*/_marker.json")), "the next attempt takes it over"
