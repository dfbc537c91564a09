"""A retry goes to another host first where one listens, and then to any: no retries are used up on
one bad host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import fleet
from tests.support.coordinator import Coordinator, failed, group
from tests.support.paths import PYTHONPATH
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token

LOST = Outcome(OutcomeKind.LOST, failure=Failure("RUNNER_DIED", "its runner died"))
HERE = os.uname().nodename
QUICK = {"max": 3, "backoff": 0}


class Hosts:
    """Hosts that listen on queue ``light``."""

    def __init__(self, coordinator: Coordinator, *names: str) -> None:
        self.coordinator, self._takes = coordinator, 0
        for name in names:
            coordinator.note_runner(name, heard=-3600, host=name)

    def take(self, host: str) -> Token | None:
        self._takes += 1
        name = f"{host}-{self._takes}"
        claim = self.coordinator.lease_of(name).take(["light"], name, f"{host}:1", f"event-{name}")
        return None if claim is None else claim.token

    def fail_all(self, host: str, outcome: Outcome) -> None:
        """All that stands ready is tried there, and waits for its next attempt."""
        while token := self.take(host):
            self.coordinator.finish(token, outcome)
        self.coordinator.read()
        wait_until(
            lambda: self.coordinator.sweep.run() or self.coordinator.sent, 10, "the next attempts"
        )


@pytest.mark.parametrize("outcome", [failed(), LOST])
def test_a_retry_is_offered_to_another_host_first(
    make_coordinator: Callable[..., Coordinator], outcome: Outcome
) -> None:
    coordinator = make_coordinator(sweep_every=10.0)
    hosts = Hosts(coordinator, "bad", "good")
    job = coordinator.submit(group("g", retry=QUICK))
    coordinator.read()
    hosts.fail_all("bad", outcome)
    standing = coordinator.redis.zrange(coordinator.keys.ready("light"), 0, -1, withscores=True)
    assert hosts.take("bad") is None
    assert (
        coordinator.redis.zrange(coordinator.keys.ready("light"), 0, -1, withscores=True)
        == standing
    )
    why = {one.subject: one for one in coordinator.client.explain(job)}["g"]
    assert "it was tried on host bad, so first it is left to good" in why.what
    assert why.next.what == "host bad may take it too"
    assert 0 < why.next.at - coordinator.show(job).at <= 30.0
    other = coordinator.submit(group("g"), name="other")
    coordinator.read()
    behind, again = hosts.take("bad"), hosts.take("good")
    assert behind is not None
    assert behind.job == other, "what stands behind it is taken meanwhile"
    assert again is not None
    assert (again.job, again.epoch) == (job, 2)


def test_after_three_sweeps_the_same_host_may_take_the_retry(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=0.1)
    hosts = Hosts(coordinator, "bad", "busy")
    coordinator.submit(group("g", retry=QUICK))
    coordinator.read()
    hosts.fail_all("bad", failed())
    assert wait_until(lambda: hosts.take("bad"), 10, "it to be taken").epoch == 2


def test_a_retry_does_not_wait_if_no_other_host_listens(coordinator: Coordinator) -> None:
    hosts = Hosts(coordinator, "bad")
    coordinator.note_runner("unfit", heard=-3600, host="unfit", unfit="no room")
    coordinator.submit(group("g", retry=QUICK))
    coordinator.read()
    hosts.fail_all("bad", failed())
    assert hosts.take("bad") is not None


def test_a_far_future_time_written_before_a_clock_reset_delays_nothing(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=1000.0)
    hosts = Hosts(coordinator, "bad", "good")
    coordinator.submit(group("g", retry=QUICK))
    coordinator.read()
    hosts.fail_all("bad", failed())
    assert hosts.take("bad") is not None


def test_a_host_skips_a_bounded_number_of_retries_reserved_for_others(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=10.0, dispatch_window=100)
    hosts, calls = Hosts(coordinator, "bad", "good"), []
    for members in (25, 50):
        coordinator.submit(
            group("f", for_each={"n": list(range(members))}, retry=QUICK), name=f"f{members}"
        )
        coordinator.read()
        hosts.fail_all("bad", failed())
        coordinator.redis.config_resetstat()
        assert hosts.take("bad") is None
        calls.append(sum(each["calls"] for each in coordinator.redis.info("commandstats").values()))
        taken = {hosts.take("good") for _ in range(members)}
        assert len(taken - {None}) == members
    assert calls[0] == calls[1]


def test_retries_of_a_fork_go_from_the_bad_host_to_the_good_one(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Real workers; one of them believes that its host has another name, and on it the step
    fails.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nreal = os.uname()\nos.uname = lambda: os.uname_result((real[0], 'bad', "
        "*real[2:]))\n"
    )
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_SWEEP_EVERY": "5s"}
    bad = {**environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), PYTHONPATH))}
    jobs = Client(Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "w")))
    steps = [{"python": "fleet_steps:fails_on", "params": {"host": "bad"}}]
    fork = {
        **group("f", for_each={"n": list(range(12))}, retry={"max": 1, "backoff": 0}),
        "steps": steps,
    }
    with (
        fleet.worker(redis_server.url, tmp_path, environ=bad, python=sys.executable) as worse,
        fleet.worker(redis_server.url, tmp_path, environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        wait_until(
            lambda: {one.host for one in jobs.fleet().runners} >= {"bad", HERE},
            60,
            "both hosts to listen",
        )
        coordinators.tend(1)
        view = jobs.wait(jobs.submit({"name": "job", "groups": [fork]}).id)
        assert view.status is Status.FINISHED, worse.text()
        records = view.groups[0].members
        assert {one.worker.rpartition(":")[0] for one in records} == {HERE}
        assert any(one.first_error for one in records), "none of them was tried on the bad host"
