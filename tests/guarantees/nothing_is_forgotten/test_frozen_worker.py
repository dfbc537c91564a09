"""A worker whose main process alone is frozen (SIGSTOP): its runners and watchdogs live, and nobody
feeds them.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.servers import RedisServer, wait_until
from unstuck import Status
from unstuck.tasks.transport.celery_app import app

pytestmark = pytest.mark.variant

QUEUE = "frozen"
UNHURRIED = {"UNSTUCK_LEASE_TTL": "15s"}  # what counts here is the silence, not the lease


def test_a_frozen_main_process_delays_no_work_and_does_not_count_as_listening(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    terms = {"lease_ttl": 15.0, "lease_renew": 0.3, "sweep_every": 0.1, "dispatch_timeout": 0.5}
    coordinator = Coordinator(redis_server.url, tmp_path / "warehouse", **terms)

    def send_wake_ups(wake_ups: Mapping[str, int]) -> None:
        with app.connection_for_write(redis_server.url) as connection:
            for queue in Counter(wake_ups).elements():
                app.send_task("unstuck.run", queue=queue, connection=connection)

    coordinator.send_wake_ups = send_wake_ups

    def submit(step: str, **params: object) -> str:
        return coordinator.submit(
            {
                "name": "g",
                "spark": False,
                "queue": QUEUE,
                "steps": [{"python": f"fleet_steps:{step}", "params": params}],
            }
        )

    def decided(condition: Callable[[], bool]) -> Callable[[], bool]:
        """``condition``, after the coordinator has done what there is to do."""

        def look() -> bool:
            coordinator.sweep.run()
            coordinator.read()
            return condition()

        return look

    def finished(*jobs: str) -> Callable[[], bool]:
        return decided(lambda: {coordinator.status(job) for job in jobs} == {Status.FINISHED})

    def listening() -> set[int]:
        """The pids of the runners that count as listening."""
        seen = coordinator.client.fleet()
        pids = {one.pid for one in seen.runners if not one.silent}
        assert sum(queue.listeners for queue in seen.queues if queue.name == QUEUE) == len(pids)
        return pids

    with fleet.worker(
        redis_server.url, tmp_path, queues=QUEUE, concurrency=2, environ=UNHURRIED
    ) as frozen:
        held = submit("until", path=str(tmp_path / "gate"))
        wait_until(
            decided(lambda: coordinator.status(held) is Status.RUNNING),
            20,
            "one of its runners to work",
        )
        with fleet.worker(redis_server.url, tmp_path, queues=QUEUE, environ=UNHURRIED) as other:
            # Given: one runner at work in the worker that freezes and one idle, for which it asked
            # Redis for a wake-up.
            mine, others = {one.pid for one in frozen.runners}, {one.pid for one in other.runners}
            wait_until(lambda: listening() == mine | others, 10, "all runners to be shown")
            frozen.process.send_signal(signal.SIGSTOP)

            # When: there is more to do. Redis mostly gives the first wake-up to the frozen one.
            more = [submit("my_pid") for _ in range(5)]

            # Then: the other worker is woken and takes it; and who is idle below the frozen one is
            # not counted,
            wait_until(finished(*more), 20, "the jobs to end that were submitted after the freeze")
            busy = wait_until(
                lambda: {one.pid for one in coordinator.client.fleet().runners if one.job == held},
                *(10, "a runner to be shown at work"),
            )
            assert busy < mine
            wait_until(lambda: listening() == busy | others, 10, "the idle runner to fall silent")
            # nor who was at work, once that is done, which counts.
            (tmp_path / "gate").touch()
            wait_until(finished(held), 20, "the job to end that ran below the frozen process")
            record = coordinator.show(held).groups[0].members[0]
            assert (record.attempt, record.losses) == (1, 0)
            wait_until(lambda: listening() == others, 10, "the other to fall silent")

            # And when it thaws, it takes work again.
            frozen.process.send_signal(signal.SIGCONT)
            wait_until(
                lambda: listening() == mine | others, 10, "the thawed worker to be shown again"
            )
            assert fleet.stop_gently(other) == 0
        wait_until(finished(submit("my_pid")), 20, "a job on the thawed worker")
