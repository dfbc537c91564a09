"""A log that nobody reads on blocks whoever writes to it. No guard of the fleet waits for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.celery_plugins.piped import log_stands_still
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant

GROUP = {"name": "g", "spark": False}
UNTIL = {"python": "fleet_steps:until"}
ENVIRON = {"UNSTUCK_STALLED_AFTER": "3s", "UNSTUCK_CANCEL_GRACE": "1s"}


def test_a_worker_whose_log_blocks_ends_itself_when_it_stops_taking_work(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    with (
        fleet.worker(redis_server.url, tmp_path, environ=ENVIRON, program="piped") as worker,
        log_stands_still(worker.process.pid),
    ):
        for name in (
            "a",
            "b",
            "c",
        ):  # Celery writes a line for each, before it hands it to a runner
            fleet.make_offer(
                client, tmp_path / "w", name, {**GROUP, "steps": [{"python": "fleet_steps:my_pid"}]}
            )
        assert worker.process.wait() in (os.EX_SOFTWARE, -signal.SIGALRM)


def test_a_watchdog_whose_log_blocks_still_ends_a_step_at_its_timeout(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    gate = {**UNTIL, "params": {"path": str(tmp_path / "never")}}
    with fleet.worker(redis_server.url, tmp_path, environ=ENVIRON, program="piped") as worker:
        group = {**GROUP, "timeout": "5s", "steps": [gate]}
        offer = fleet.make_offer(client, tmp_path / "w", "late", group)
        runner = fleet.runner_of(client, offer)
        with log_stands_still(worker.process.pid):
            outcome = fleet.outcome(client, offer, 60)
            assert outcome.kind is OutcomeKind.FAILED
            assert outcome.failure is not None
            assert outcome.failure.code == "TIMEOUT"
            wait_until(lambda: fleet.gone(runner.pid), 30, "the runner to be ended")
