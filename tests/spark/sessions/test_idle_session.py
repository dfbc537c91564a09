"""A Spark session that is not used ends with its runner, and the next group has another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.programs.processes import command_line, lives
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant


def spark_group(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "steps": [{"sql": "SELECT 1 AS one", "output": "x"}], **more}


def jvm_of(worker: fleet.FleetWorker) -> psutil.Process:
    (jvm,) = [
        one for runner in worker.runners for one in runner.children() if "java" in command_line(one)
    ]
    return jvm


def succeeds(client: redis.Redis, folder: Path, job: str, group: dict[str, Any]) -> None:
    outcome = fleet.outcome(client, fleet.make_offer(client, folder / "warehouse", job, group), 120)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome


def test_an_idle_session_ends_with_its_jvm_and_the_next_group_starts_another(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    with fleet.worker(
        redis_server.url, tmp_path, queues="spark", environ={"UNSTUCK_SESSION_IDLE": "5s"}
    ) as worker:
        (first,) = worker.runners
        succeeds(client, tmp_path, "one", spark_group("g"))
        jvm = jvm_of(worker)
        wait_until(
            lambda: not lives(jvm) and not lives(first),
            60,
            "the idle JVM and its runner to be gone",
        )
        wait_until(lambda: len(worker.runners) == 1, 20, "another runner")
        (second,) = worker.runners
        succeeds(client, tmp_path, "two", spark_group("g"))
        assert [report["kind"] for report in fleet.reports(client)] == ["claimed", "succeeded"] * 2
        assert lives(second), worker.story()
        assert "prematurely" not in worker.text()


@pytest.mark.long
def test_a_worker_that_starts_its_session_early_keeps_it(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    environ = {"UNSTUCK_SESSION_IDLE": "100ms", "UNSTUCK_SPARK_PREWARM": "true"}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
        pids = []
        for job in ("one", "two", "three"):
            group = {"name": "g", "steps": [{"python": "fleet_steps:my_pid"}]}
            offer = fleet.make_offer(client, tmp_path / "warehouse", job, group)
            pids.append(fleet.outcome(client, offer, 120).results["pid"])
        assert len(set(pids)) == 1, worker.story()


@pytest.mark.long
def test_a_runner_that_waits_for_a_fresh_runner_ends_its_idle_session(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    """On a cluster, the fresh session may be waiting for the very cores that the idle one holds."""
    started = tmp_path / "started"
    with fleet.worker(
        redis_server.url, tmp_path, queues="spark", environ={"UNSTUCK_SESSION_IDLE": "1s"}
    ) as worker:
        step = {"python": "fleet_steps:sleep_on", "params": {"started": str(started)}}
        group = {"name": "g", "queue": "spark", "spark": False, "fresh": True, "steps": [step]}
        first = fleet.make_offer(
            client, tmp_path / "warehouse", "one", spark_group("g"), send=False
        )
        then = fleet.make_offer(client, tmp_path / "warehouse", "two", group, send=False)
        fleet.stand(client, first, "spark")  # one right after the other, before the session is idle
        fleet.send_wake_up(client, then, "spark")
        fleet.begun(client, then, started)
        assert fleet.outcome(client, first, 0).kind is OutcomeKind.SUCCEEDED
        wait_until(
            lambda: "was not used for 1s" in worker.text(), 60, "the idle session to be ended"
        )
        assert "outcome" not in fleet.attempt(client, then)
        fleet.instruct(client, then, "CANCEL")
        assert fleet.outcome(client, then, 30).kind is OutcomeKind.CANCELED
        succeeds(client, tmp_path, "three", spark_group("g"))
