"""``fresh: true``: each attempt of the group runs in a process that has run nothing else."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.process.tree import is_watchdog
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer


def make_offer(
    store: redis.Redis, folder: Path, job: str, step: str, *, fresh: bool, **params: Any
) -> Offer:
    spec = {
        "name": "g",
        "spark": False,
        "fresh": fresh,
        "steps": [{"python": f"fleet_steps:{step}", "params": params}],
    }
    return fleet.make_offer(store, folder / "warehouse", job, spec)


def pid(store: redis.Redis, offer: Offer) -> int:
    outcome = fleet.outcome(store, offer, 60)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome
    return int(outcome.results["pid"])


def test_each_attempt_of_a_fresh_group_has_its_own_process(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    with fleet.worker(redis_server.url, tmp_path) as worker:
        (runner,) = worker.runners
        jobs = ["a", "fresh-b", "c", "fresh-d", "e"]
        pids = {}
        for job in jobs:
            offer = make_offer(client, tmp_path, job, "my_pid", fresh=job.startswith("fresh"))
            pids[job] = pid(client, offer)
        assert [pids[job] == runner.pid for job in jobs] == [True, False, True, False, True], (
            worker.story()
        )
        assert pids["fresh-b"] != pids["fresh-d"]
        wait_until(lambda: fleet.gone(pids["fresh-d"]), 20, "the last fresh runner to be gone")


SLOW_START = """
import pathlib, sys, time

if "unstuck.tasks.runner.fresh_process" in sys.orig_argv:
    while pathlib.Path({gate!r}).exists():
        time.sleep(0.05)
"""


@pytest.mark.variant
def test_the_lease_is_renewed_while_a_fresh_runner_starts_slowly(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    (gate := tmp_path / "gate").touch()
    (tmp_path / "sitecustomize.py").write_text(SLOW_START.format(gate=str(gate)))
    own = {"PYTHONPATH": f"{tmp_path}:{PYTHONPATH}"}
    with fleet.worker(redis_server.url, tmp_path, environ=own, python=sys.executable):
        offer = make_offer(client, tmp_path, "job", "my_pid", fresh=True)
        fleet.renewed(client, offer)
        gate.unlink()
        pid(client, offer)


@pytest.mark.variant
def test_a_fresh_runner_hands_its_attempt_back_when_its_worker_stops(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with fleet.worker(redis_server.url, tmp_path) as worker:
        offer = make_offer(client, tmp_path, "job", "sleep_on", fresh=True, started=str(started))
        fleet.begun(client, offer, started)
        assert fleet.stop_gently(worker) == 0, worker.story()
    assert fleet.outcome(client, offer, 0).kind is OutcomeKind.RELEASED


def test_a_killed_fresh_runner_is_reported_lost_and_its_parent_continues(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with fleet.worker(redis_server.url, tmp_path, environ={"UNSTUCK_LEASE_TTL": "60s"}) as worker:
        (runner,) = worker.runners
        offer = make_offer(client, tmp_path, "job", "sleep_on", fresh=True, started=str(started))
        fleet.begun(client, offer, started)
        (fresh,) = [
            one
            for one in runner.children()
            if "unstuck.tasks.runner.fresh_process" in " ".join(one.cmdline())
        ]
        fresh.send_signal(signal.SIGKILL)
        assert fleet.outcome(client, offer, 20).kind is OutcomeKind.LOST
        assert (
            pid(client, make_offer(client, tmp_path, "next", "my_pid", fresh=False)) == runner.pid
        )


@pytest.mark.variant
def test_the_watchdog_of_a_fresh_runner_reports_the_loss_although_the_parent_dies_first(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The watchdog of the runner above ends what that one leaves, but for the one that has
    something to report.
    """
    started = tmp_path / "started"
    environ = {"UNSTUCK_LEASE_TTL": "60s", "UNSTUCK_LEASE_RENEW": "200ms"}
    with fleet.worker(redis_server.url, tmp_path, environ=environ) as worker:
        (runner,) = worker.runners
        offer = make_offer(client, tmp_path, "job", "sleep_on", fresh=True, started=str(started))
        fleet.begun(client, offer, started)
        for _ in range(4):  # by then the watchdog above knows the one below, which looks as often
            fleet.renewed(client, offer)
        (fresh,) = [
            one
            for one in runner.children()
            if "unstuck.tasks.runner.fresh_process" in " ".join(one.cmdline())
        ]
        (watchdog,) = [one for one in fresh.children() if is_watchdog(one.pid)]
        above = worker.watchdog()
        watchdog.suspend()
        for one in (fresh, runner):
            one.kill()
        wait_until(
            lambda: fleet.gone(above.pid),
            20,
            "the watchdog above to have ended what its runner left",
        )
        watchdog.resume()
        assert fleet.outcome(client, offer, 20).kind is OutcomeKind.LOST


@pytest.mark.variant
def test_a_fresh_runner_that_dies_during_the_watchdog_start_is_reported_lost(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    environ = {"UNSTUCK_LEASE_TTL": "60s", "UNSTUCK_LEASE_RENEW": "100ms"}
    with fleet.worker(redis_server.url, tmp_path, environ=environ) as worker:
        (runner,) = worker.runners
        assert (
            pid(client, make_offer(client, tmp_path, "first", "my_pid", fresh=False)) == runner.pid
        )
        offer = make_offer(client, tmp_path, "job", "die_at_once", fresh=True)
        assert fleet.outcome(client, offer, 30).kind is OutcomeKind.LOST
        assert (
            pid(client, make_offer(client, tmp_path, "next", "my_pid", fresh=False)) == runner.pid
        ), worker.story()


@pytest.mark.variant
def test_a_fresh_runner_that_hangs_at_exit_is_ended_and_its_parent_continues(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    with fleet.worker(
        redis_server.url, tmp_path, environ={"UNSTUCK_SESSION_TIMEOUT": "2s"}
    ) as worker:
        (runner,) = worker.runners
        offer = make_offer(client, tmp_path, "job", "a_log_that_cannot_be_closed", fresh=True)
        assert fleet.outcome(client, offer, 30).kind is OutcomeKind.SUCCEEDED
        assert (
            pid(client, make_offer(client, tmp_path, "next", "my_pid", fresh=False)) == runner.pid
        ), worker.story()


def test_a_fresh_runner_that_cannot_start_is_charged_only_to_its_own_attempt(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    from tests.support.programs.runner import single_runner

    spec = {"name": "g", "spark": False, "fresh": True, "steps": [{"python": "fleet_steps:my_pid"}]}
    offer = fleet.make_offer(client, tmp_path / "warehouse", "job", spec, send=False)
    broken = "runner.replace = lambda: None\nimport os; os.environ['PYTHONHOME'] = '/nowhere'\n"
    with single_runner(redis_server.url, tmp_path, offer, prepared=broken) as runner:
        assert runner.said() == ["lost APPLIED"]
    outcome = fleet.outcome(client, offer, 0)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.code) == (OutcomeKind.LOST, "NOT_BEGUN")
    assert "did nothing" in outcome.failure.text
