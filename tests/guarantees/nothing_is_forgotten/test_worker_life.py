"""Whole workers: how they start, how they end, and what is said of the work that ends with them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

LEASE_TTL = 3.0  # as fleet.worker sets it
STARTS = re.findall(
    "^celery -A .* worker .*", (ROOT / "docs" / "operate.md").read_text(), re.MULTILINE
)


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.mark.variant
def test_a_reply_about_the_last_attempt_never_ends_the_next_one(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    """A renewal that crosses the finish is answered STALE, and is heard when the runner holds
    another attempt.
    """
    with fleet.worker(
        redis_server.url, tmp_path, queues="busy", environ={"UNSTUCK_LEASE_RENEW": "1ms"}
    ) as busy:
        steps = [{"python": "fleet_steps:my_pid"}]
        offers = [
            fleet.make_offer(
                store,
                tmp_path / "w",
                f"busy{n}",
                {"name": "g", "spark": False, "queue": "busy", "steps": steps},
            )
            for n in range(60)
        ]
        outcomes = [fleet.outcome(store, offer) for offer in offers]
        assert {o.kind for o in outcomes} == {OutcomeKind.SUCCEEDED}, busy.text()[-2000:]


@pytest.mark.variant
def test_an_outcome_waits_for_an_unreachable_store_and_is_not_lost(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        with (
            redis.Redis.from_url(server.url, decode_responses=True) as store,
            fleet.worker(server.url, tmp_path, environ={"UNSTUCK_LEASE_TTL": "60s"}) as lonely,
        ):
            steps = [{"python": "fleet_steps:until", "params": {"path": str(tmp_path / "go")}}]
            offer = fleet.make_offer(
                store, tmp_path / "w", "away", {"name": "g", "spark": False, "steps": steps}
            )
            # Not when it has claimed: the answer to that might still be in the store when it
            # freezes.
            wait_until(lambda: "step 1 of 1" in lonely.text(), 60, "the step to begin")
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            (tmp_path / "go").touch()
            wait_until(
                lambda: "before_sleep" in lonely.text() or "Retrying" in lonely.text(),
                30,
                "a try to finish",
            )
            server.process.send_signal(signal.SIGCONT)
            outcome = fleet.outcome(store, offer, 30)
            assert outcome.kind is OutcomeKind.SUCCEEDED
            assert [r["kind"] for r in fleet.reports(store)] == ["claimed", "succeeded"]
    finally:
        server.stop()


@pytest.mark.variant
def test_a_worker_that_stops_immediately_hands_its_attempt_back(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues="fourth") as fourth:
        steps = [{"python": "fleet_steps:wait_for_cancel"}]
        offer = fleet.make_offer(
            store,
            tmp_path / "w",
            "cold",
            {"name": "g", "spark": False, "queue": "fourth", "steps": steps},
        )
        fleet.renewed(store, offer)
        fourth.process.send_signal(signal.SIGQUIT)
        assert fleet.outcome(store, offer, 10).kind is OutcomeKind.RELEASED


def test_a_dying_worker_ends_its_runner_and_the_attempt_is_reported_lost(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues="other") as other:
        steps = [{"python": "fleet_steps:sleep_on"}]
        offer = fleet.make_offer(
            store,
            tmp_path / "w",
            "orphan",
            {"name": "g", "spark": False, "queue": "other", "steps": steps},
        )
        runner = fleet.runner_of(store, offer)
        watchdog = other.watchdog()
        fleet.renewed(store, offer)
        os.kill(other.process.pid, signal.SIGKILL)
        # There is no coordinator here: whatever stands on the record was reported, however busy the
        # machine.
        assert fleet.outcome(store, offer, 10.0).kind is OutcomeKind.LOST
        wait_until(
            lambda: fleet.gone(runner.pid) and fleet.gone(watchdog.pid),
            10,
            "runner and watchdog to be gone",
        )


def test_a_cleanly_stopped_worker_leaves_no_process_and_no_fleet_entry(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues="third") as third:
        watchdog = third.watchdog()
        (runner,) = third.runners
        wait_until(
            lambda: [one for one in fleet.listed(store) if one.pid == runner.pid], 20, "its line"
        )
        assert fleet.stop_gently(third) == 0
        wait_until(
            lambda: fleet.gone(watchdog.pid) and fleet.gone(runner.pid),
            10,
            "its processes to be gone",
        )
        assert not [one for one in fleet.listed(store) if one.pid == runner.pid]


def test_a_runner_does_not_scan_objects_of_its_worker_to_keep_memory_shared(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues="shared"):
        steps = [{"python": "fleet_steps:looks_through"}]
        group = {"name": "g", "spark": False, "queue": "shared", "steps": steps}
        assert fleet.outcome(
            store, fleet.make_offer(store, tmp_path / "w", "shared", group)
        ).results == {"looks_through": False}


def test_a_pool_without_processes_is_refused_with_a_reason(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with (
        pytest.raises(AssertionError, match="needs the prefork pool"),
        fleet.worker(redis_server.url, tmp_path, arguments=["-P", "threads"]),
    ):
        raise RuntimeError("the worker started")


@pytest.mark.variant
@pytest.mark.parametrize("app", ["unstuck.tasks", "unstuck.coordinator"])
def test_documented_worker_commands_disable_gossip_and_mingle(
    app: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A reply that is lost within Celery's mingle, on a reconnect, ends a worker and hands its
    running steps back.
    """
    command = next(found for found in reversed(STARTS) if f" {app} " in found)
    assert "--without" not in command, "what the app does by itself needs no option"
    log, words = tmp_path / "log", [*shlex.split(command)[1:], "-l", "DEBUG"]
    env = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "w"),
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *words],
            env={**os.environ, **env},
            cwd=tmp_path,
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(
            lambda: " ready." in log.read_text() or process.poll() is not None, 60, "it to be ready"
        )
        begun = set(re.findall(r"Consumer: Starting (\w+)", log.read_text()))
        assert {"Connection", "Control", "Tasks"} <= begun, log.read_text()[-2000:]
        assert not {"Mingle", "Gossip"} & begun
    finally:
        process.terminate()
        process.wait()
