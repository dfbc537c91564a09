"""A tick whose coordinator was killed begins within the lock's term, however seldom the fleet
sweeps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.support.coordinator import Coordinator, group
from tests.support.failpoints import Effect, arming, order, reached_at, reached_by
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings
from unstuck.coordinator.decide.timers.backoff import BUSY_WAIT
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.keys import Keys

SPEC = {"name": "ticking", "schedule": {}, "groups": [group("a")]}


@pytest.mark.parametrize(
    "point", [Point.AFTER_TAKE, Point.BEFORE_SUBMIT, Point.AFTER_LOCK, Point.BEFORE_COMMIT]
)
def test_a_tick_starts_when_the_lock_of_a_killed_coordinator_expires(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path, point: Point
) -> None:
    """No sweep finds the tick: the next one is due in 20 minutes. The next coordinator may start
    before or after the term ends.
    """
    seldom = {"sweep_every": 1200.0, "report_idle": 1200.0}
    settings = Settings(redis_url=redis_server.url, warehouse=str(tmp_path), lock_ttl=2.0, **seldom)
    environ = {
        f"UNSTUCK_{name.upper()}": str(getattr(settings, name))
        for name in settings.model_fields_set
    }
    arms, keys = tmp_path / "arms", Keys(settings.prefix)
    arms.mkdir()
    shot = order(arms, point, Effect.KILL)
    Store(settings, client).tick(
        settings.sweep_every, settings.lease_ttl
    )  # or the first sweep decides everything
    app = Client(settings, redis_client=client)
    app.schedules.set(SPEC)
    app.schedules.run("ticking")
    with coordinator_processes(tmp_path, {**environ, **arming(arms)}) as coordinators:
        coordinators.tend(1)
        wait_until(lambda: reached_by(shot), 20, "the coordinator to be killed")
        of_job = point in (Point.AFTER_LOCK, Point.BEFORE_COMMIT)
        ((_, term_ends),) = client.zrange(
            keys.due if of_job else keys.schedules_due, 0, -1, withscores=True
        )

        def began() -> float:
            coordinators.tend(1)  # the other one, as soon as the first is dead
            events = [event for job in app.jobs() for _, event in app.events(job.id)]
            return next((event["at"] for event in events if event["kind"] == "QUEUED"), 0.0)

        at = wait_until(began, 60, "the run to begin")
    assert term_ends <= at < term_ends + settings.sweep_every / 4
    assert term_ends <= reached_at(shot) + settings.lock_term + 0.05, (
        "the other half is for who follows"
    )


def test_work_due_by_time_is_processed_on_time_and_reports_are_left_to_their_reader(
    coordinator: Coordinator,
) -> None:
    now = lambda: coordinator.schedule_store.now()  # noqa: E731
    coordinator.sweep.run_due(0.5)
    job = coordinator.submit(group("a"))
    offered = lambda: bool(coordinator.sent)  # noqa: E731
    assert coordinator.sweep.run_due(0.5) == 0.5
    assert not offered(), "the message of its submit is in the stream"
    term_ends = now() + 0.3
    coordinator.redis.zadd(coordinator.keys.due, {job: term_ends})
    assert BUSY_WAIT[1] <= coordinator.sweep.run_due(0.5) <= 0.3
    wait_until(lambda: now() >= term_ends, 5, "the end of the term")
    coordinator.sweep.run_due(0.5)
    assert offered()
    coordinator.client.schedules.set(SPEC)
    coordinator.schedules.run()
    coordinator.redis.zadd(coordinator.keys.schedules_due, {"ticking": now() + 0.3})
    assert BUSY_WAIT[1] <= coordinator.sweep.run_due(0.5) <= 0.3


def test_the_first_scan_of_a_coordinator_decides_jobs_due_before_its_start(
    coordinator: Coordinator,
) -> None:
    coordinator.submit(group("a"))
    coordinator.sweep.run_due(0.5)
    assert coordinator.sent


def test_a_coordinator_that_scans_late_decides_a_job_for_its_due_time(
    coordinator: Coordinator,
) -> None:
    now = lambda: coordinator.schedule_store.now()  # noqa: E731
    coordinator.sweep.run_due(0.5)
    job = coordinator.submit(group("a"))
    term_ends = now() + 0.2
    coordinator.redis.zadd(coordinator.keys.due, {job: term_ends})
    coordinator.sweep.run_due(0.01)  # the term ends after the next look should have been
    wait_until(lambda: now() >= term_ends, 5, "the end of the term")
    coordinator.sweep.run_due(0.01)
    assert coordinator.sent
