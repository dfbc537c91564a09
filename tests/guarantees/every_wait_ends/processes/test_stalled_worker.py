"""A worker that is connected and takes nothing any more ends itself; one that is merely busy never
does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.network.proxy import Proxy
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings
from unstuck.doctor.finding import Level
from unstuck.doctor.fleet_checks import of_problems
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.transport.celery_app import celery_app

STALLED_AFTER = 2.0
QUEUE = "stalling"


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    made = Proxy(redis_server.port)
    yield made
    made.close()


@pytest.mark.claim("A worker or coordinator that stalls ends itself, and a busy one does not.")
def test_only_a_stalled_worker_hands_back_and_ends_itself(
    client: redis.Redis, redis_server: RedisServer, proxy: Proxy, tmp_path: Path
) -> None:
    """Celery's connection stays open and carries nothing any more, as behind a firewall that forgot
    it.
    """

    def make_offer(name: str, step: str, **params: Any) -> Offer:
        steps = [{"python": f"fleet_steps:{step}", "params": params}]
        return fleet.make_offer(
            client,
            tmp_path / "w",
            name,
            {"name": "g", "spark": False, "queue": QUEUE, "steps": steps},
        )

    environ = {"UNSTUCK_STALLED_AFTER": f"{STALLED_AFTER}s", "UNSTUCK_DRAIN_GRACE": "500ms"}
    with fleet.worker(proxy.url, tmp_path, queues=QUEUE, concurrency=2, environ=environ) as worker:
        # Given: both runners busy, and a queue that is not empty, for more than twice the time.
        held = make_offer("held", "wait_for_cancel")
        busy = make_offer("busy", "until", path=str(tmp_path / "gate"))
        for offer in (held, busy):
            fleet.claimed(client, offer)
        waits = make_offer("waits", "my_pid")
        began = time.monotonic()
        wait_until(
            lambda: (
                time.monotonic() - began > 2.5 * STALLED_AFTER or worker.process.poll() is not None
            ),
            30,
        )
        assert worker.process.poll() is None, worker.text()[-2000:]
        assert client.llen(fleet.KEYS.queue(QUEUE)) == 1
        (tmp_path / "gate").touch()
        assert fleet.outcome(client, waits).kind is OutcomeKind.SUCCEEDED
        wait_until(
            lambda: worker.text().count("] succeeded in ") == 2,
            20,
            "that runner to take nothing by itself",
        )

        # When: one runner is idle, and what Celery listens on is dead without having been closed.
        assert proxy.mute(b"BRPOP") >= 1
        lost = make_offer("lost", "my_pid")
        fleet.send_wake_up(
            client, lost, QUEUE
        )  # as a sweep does: the dead connection may have popped the first one

        # Then: the worker ends, so that its supervisor sees that it has to start another, and
        # nothing is lost.
        code = worker.process.wait()
        # Celery may wait in its own shutdown for the reply that never comes; then the alarm ends
        # it.
        assert code in (os.EX_SOFTWARE, -signal.SIGALRM), worker.text()[-2000:]
        text = worker.text()
        assert re.search(rf"has stalled: for \ds it has received nothing from {QUEUE}", text)
        assert fleet.outcome(client, held).kind is OutcomeKind.RELEASED
        assert client.llen(fleet.KEYS.queue(QUEUE)) >= 1, (
            "what it did not hear waits for the next worker"
        )
        assert "claimant" not in fleet.attempt(client, lost)

    with Client(Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "w"))) as people:
        view = people.fleet()
    assert [one.worker.rpartition(":")[2] for one in view.stalled] == [str(worker.process.pid)]
    assert [one.level for one in of_problems((), view) if one.code == "STALLED"] == [Level.WARNING]


@pytest.mark.claim("A worker or coordinator that stalls ends itself, and a busy one does not.")
@pytest.mark.variant
def test_a_hanging_worker_whose_runner_stays_busy_ends_itself(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Celery never hears that the runner is done. The runner knows that it is."""
    group: dict[str, Any] = {"name": "g", "spark": False, "queue": QUEUE}
    gate = {"python": "fleet_steps:until", "params": {"path": str(tmp_path / "gate")}}
    environ = {"UNSTUCK_STALLED_AFTER": f"{STALLED_AFTER}s"}
    app = celery_app("people", (QUEUE,), Settings(redis_url=redis_server.url))
    with fleet.worker(
        redis_server.url, tmp_path, queues=QUEUE, environ=environ, arguments=["-I", "hanging"]
    ) as worker:
        # Given: a runner at work, and a main process that hangs.
        works = fleet.make_offer(client, tmp_path / "w", "works", {**group, "steps": [gate]})
        fleet.claimed(client, works)
        app.control.broadcast("hang")
        waits = fleet.make_offer(
            client, tmp_path / "w", "waits", {**group, "steps": [{"python": "fleet_steps:my_pid"}]}
        )
        fleet.send_wake_up(
            client, waits, QUEUE
        )  # what it was asking for may have got the first wake-up
        began = time.monotonic()
        wait_until(
            lambda: (
                time.monotonic() - began > 2.5 * STALLED_AFTER or worker.process.poll() is not None
            ),
            30,
        )
        assert worker.process.poll() is None, "what runs is not given up"
        # When: the work is done.
        (tmp_path / "gate").touch()
        assert fleet.outcome(client, works).kind is OutcomeKind.SUCCEEDED
        # Then: it is found stalled, and the alarm ends it.
        assert worker.process.wait() == -signal.SIGALRM, worker.text()[-2000:]
        assert "has stalled: " in worker.text()
    app.close()


def test_doctor_names_a_queue_ignored_by_an_idle_worker(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its watchdog goes on saying that an idle runner listens.

    Here it was told over the broker to listen no more.
    """

    def queues(stalled_after: str) -> dict[str, Any]:
        coordinator.heartbeat.beat(None, 0.0)
        done = Cli(redis_server.url, tmp_path)(
            "doctor", "--json", UNSTUCK_STALLED_AFTER=stalled_after
        )
        (found,) = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "QUEUES"]
        return dict(found)

    def listen(word: str) -> None:
        assert app.control.broadcast(
            word, arguments={"queue": QUEUE}, reply=True, timeout=None, limit=1
        )

    app = celery_app("people", (QUEUE,), Settings(redis_url=redis_server.url))
    with fleet.worker(redis_server.url, tmp_path, queues=QUEUE) as worker:
        wait_until(lambda: coordinator.client.fleet().runners, 10, "the runner to be shown")
        listen("cancel_consumer")
        group = {
            "name": "g",
            "spark": False,
            "queue": QUEUE,
            "steps": [{"python": "fleet_steps:my_pid"}],
        }
        offers = [
            fleet.make_offer(coordinator.redis, tmp_path / "w", name, group)
            for name in ("a", "b", "c")
        ]
        assert queues("1m")["level"] == "ok", "they came just now"
        found = wait_until(
            lambda: (now := queues("1s"))["level"] == "problem" and now, 20, "the doctor to see it"
        )
        assert f"on queue {QUEUE}, the oldest for" in found["text"]
        assert f":{worker.process.pid}" in found["text"]
        assert "restart that worker" in found["cure"]
        listen("add_consumer")
        for offer in offers:
            fleet.outcome(coordinator.redis, offer)
        # One wake-up was enough for all three; Celery may deliver the others a moment later.
        wait_until(lambda: queues("1s")["level"] == "ok", 20, "the doctor to find the queue empty")
    app.close()
