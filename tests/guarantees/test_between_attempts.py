"""A child of the pool that hangs where it holds no attempt, and where nobody looks, is ended and replaced."""

from __future__ import annotations

import time
from pathlib import Path

import fleet
import hanging
import psutil
import pytest
import redis
from servers import RedisServer, wait_until

from tasks.report import OutcomeKind

GROUP = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
SOON = {"UNSTUCK_DISPATCH_TIMEOUT": "1s", "UNSTUCK_SESSION_TIMEOUT": "2s"}


@pytest.mark.parametrize(
    ("place", "arguments"),
    [("worker_process_init", []), ("task_postrun", []), ("worker_process_shutdown", ["--max-tasks-per-child", "1"])],
    ids=["in its start", "after an attempt", "in its end"],
)
def test_a_child_that_hangs_where_it_holds_nothing_is_ended_and_another_takes_its_place(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, place: str, arguments: list[str]
) -> None:
    hung = tmp_path / "hung"
    environ = {**SOON, hanging.AT: place, hanging.ONCE: str(hung)}
    arguments = ["-I", "hanging", *arguments]
    with fleet.worker(redis_server.url, tmp_path, environ=environ, arguments=arguments, program="hanging") as worker:
        # Given: its only child hangs, and no attempt is held.
        first = fleet.offer(client, tmp_path / "w", "first", GROUP)
        wait_until(hung.exists, 60, "the child to hang")
        (child,) = worker.runners
        # When: there is something to do.
        hint = fleet.offer(client, tmp_path / "w", "next", GROUP)
        # Then: it is done, by another child.
        for each in (first, hint):
            assert fleet.outcome(client, each, 60).kind is OutcomeKind.SUCCEEDED, worker.story()
        assert fleet.gone(child.pid)
        assert "signal 14 (SIGALRM)" in worker.text()


def test_a_child_that_takes_its_time_to_wait_or_to_work_is_let_be(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    gate = {"python": "fleet_steps:until", "params": {"path": str(tmp_path / "gate")}}
    with fleet.worker(redis_server.url, tmp_path, environ=SOON, program="hanging") as worker:
        (child,) = worker.runners
        longer = hanging.ON_THE_WAY + 2.0
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > longer, 30)
        works = fleet.offer(client, tmp_path / "w", "works", {**GROUP, "steps": [gate]})
        fleet.claimed(client, works)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > longer, 30)
        (tmp_path / "gate").touch()
        assert fleet.outcome(client, works).kind is OutcomeKind.SUCCEEDED
        assert worker.runners == [psutil.Process(child.pid)]
