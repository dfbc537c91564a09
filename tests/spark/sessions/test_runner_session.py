"""A Spark session that does not start: the group must not wait for it for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant


def test_a_session_that_starts_too_slowly_fails_the_attempt_with_a_reason(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    # Given: a master that takes the connection and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {
            "UNSTUCK_SPARK_MASTER": f"spark://127.0.0.1:{silent.getsockname()[1]}",
            "UNSTUCK_SESSION_TIMEOUT": "2s",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
            group = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "x"}]}
            offer = fleet.make_offer(client, tmp_path / "warehouse", "job", group)
            outcome = fleet.outcome(client, offer, 60)
            assert outcome.kind is OutcomeKind.FAILED
            assert outcome.failure is not None
            assert (outcome.failure.code, outcome.failure.recoverable) == ("SESSION_TIMEOUT", True)
            assert "UNSTUCK_SESSION_TIMEOUT" in outcome.failure.text
            wait_until(lambda: len(worker.runners) == 1, 10, "the worker to have a runner again")


def test_a_cancel_ends_an_attempt_whose_session_is_still_starting(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {
            "UNSTUCK_SPARK_MASTER": f"spark://127.0.0.1:{silent.getsockname()[1]}",
            "UNSTUCK_CANCEL_GRACE": "1s",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
            group = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "x"}]}
            offer = fleet.make_offer(client, tmp_path / "warehouse", "job", group)
            wait_until(
                lambda: "starting Spark" in fleet.attempt(client, offer).get("progress", ""),
                30,
                "the start",
            )
            fleet.instruct(client, offer, "CANCEL")
            assert fleet.outcome(client, offer, 15).kind is OutcomeKind.CANCELED
            wait_until(lambda: len(worker.runners) == 1, 10, "the worker to have a runner again")
