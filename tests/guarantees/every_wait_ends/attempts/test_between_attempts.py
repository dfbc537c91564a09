"""A child of the pool that hangs where it holds no attempt, and where nobody looks, is ended and
replaced.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.celery_plugins import hanging
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer

pytestmark = pytest.mark.variant

GROUP = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
SOON = {"UNSTUCK_DISPATCH_TIMEOUT": "1s", "UNSTUCK_SESSION_TIMEOUT": "2s"}


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ("worker_process_init", []),
        ("task_postrun", []),
        ("worker_process_shutdown", ["--max-tasks-per-child", "1"]),
    ],
    ids=["in its start", "after an attempt", "in its end"],
)
def test_an_idle_child_that_hangs_is_ended_and_replaced(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, place: str, arguments: list[str]
) -> None:
    hung = tmp_path / "hung"
    environ = {**SOON, hanging.AT: place, hanging.ONCE: str(hung)}
    arguments = ["-I", "hanging", *arguments]
    with fleet.worker(
        redis_server.url, tmp_path, environ=environ, arguments=arguments, program="hanging"
    ) as worker:
        # Given: its only child hangs, and no attempt is held.
        offers = [fleet.make_offer(client, tmp_path / "w", "first", GROUP)]
        child = int(wait_until(lambda: hung.exists() and hung.read_text(), 60, "the child to hang"))
        # When: there is something to do.
        offers.append(fleet.make_offer(client, tmp_path / "w", "next", GROUP))
        # Then: it is done, by another child.
        wait_until(lambda: _done(client, offers), 90, "both groups to be done", every=2.0)
        assert fleet.gone(child)
        assert "signal 14 (SIGALRM)" in worker.text()


def _done(client: redis.Redis, offers: list[Offer]) -> bool:
    """Whether all have succeeded; the wake-up for one that has not is sent again, as a coordinator
    does.
    """
    left = [offer for offer in offers if "outcome" not in fleet.attempt(client, offer)]
    for offer in left:
        fleet.send_wake_up(client, offer, "light")
    return not left and all(
        fleet.outcome(client, offer).kind is OutcomeKind.SUCCEEDED for offer in offers
    )


def test_a_child_that_waits_or_works_for_long_is_not_ended(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    gate = {"python": "fleet_steps:until", "params": {"path": str(tmp_path / "gate")}}
    with fleet.worker(redis_server.url, tmp_path, environ=SOON, program="hanging") as worker:
        (child,) = worker.runners
        longer = hanging.ON_THE_WAY + 2.0
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > longer, 30)
        works = fleet.make_offer(client, tmp_path / "w", "works", {**GROUP, "steps": [gate]})
        fleet.claimed(client, works)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > longer, 30)
        (tmp_path / "gate").touch()
        assert fleet.outcome(client, works).kind is OutcomeKind.SUCCEEDED
        assert worker.runners == [psutil.Process(child.pid)]


def test_a_step_may_use_its_own_alarm_in_every_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its handler is set once, when its module is imported."""
    alarmed = {**GROUP, "steps": [{"python": "alarming:alarmed"}]}
    with fleet.worker(redis_server.url, tmp_path, environ=SOON) as worker:
        runners = worker.runners
        for name in ("first", "second"):
            offer = fleet.make_offer(client, tmp_path / "w", name, alarmed)
            assert fleet.outcome(client, offer, 60).kind is OutcomeKind.SUCCEEDED, worker.story()
        assert worker.runners == runners
