"""``unstuck health`` on real processes: what is frozen is not well, what is busy is, and what is
dead is not judged.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.fleet import make_offer
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Settings
from unstuck.doctor.process_health import health_of, judged, process_age
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo

HOST = os.uname().nodename
QUEUE = "health"
QUICK: dict[str, Any] = {"lease_ttl": 2.0, "lease_renew": 0.2}


@pytest.mark.variant
def test_a_worker_is_healthy_during_a_long_step_but_not_when_frozen(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, cli: Cli
) -> None:
    settings = Settings(redis_url=redis_server.url, **QUICK)
    environ = {f"UNSTUCK_{name.upper()}": f"{value}s" for name, value in QUICK.items()}
    ask = ("health", "worker", "--max-age", "2s")

    def ailing() -> tuple[str, ...]:
        return health_of(
            client, settings, "worker", HOST, 2.0
        ).ailing  # the limit that the command is given

    assert cli(*ask).returncode == 1, "nobody has been heard of"
    with fleet.worker(redis_server.url, tmp_path, queues=QUEUE, environ=environ) as worker:
        (runner,) = worker.runners
        wait_until(lambda: fleet.listed(client), 60, "the runner to be shown")
        # Given: a step that takes longer than the limit, with nothing to say.
        gate = {"python": "fleet_steps:until", "params": {"path": str(tmp_path / "gate")}}
        group = {"name": "g", "spark": False, "queue": QUEUE, "steps": [gate]}
        offer = make_offer(client, tmp_path / "warehouse", "job", group)
        since = float(fleet.claimed(client, offer)["claimed_at"])
        wait_until(
            lambda: client.time()[0] - since > 4, 60, "the step to run longer than the limit"
        )
        assert not ailing()
        done = cli(*ask)
        assert (done.returncode, done.stdout) == (0, "1 runner of this host at work\n"), done.stderr
        # When: the runner is frozen; then: it is named. Once it goes on, it is well.
        runner.send_signal(signal.SIGSTOP)
        wait_until(ailing, 60, "the frozen runner to be named")
        assert (
            f"runner {runner.pid} of worker {worker.process.pid} has done nothing for"
            in ailing()[0]
        )
        runner.send_signal(signal.SIGCONT)
        wait_until(lambda: not ailing(), 60, "the runner to be well again")
        # When: the main process is frozen, and its runner has nothing to do.
        (tmp_path / "gate").touch()
        fleet.outcome(client, offer)
        worker.process.send_signal(signal.SIGSTOP)
        wait_until(ailing, 60, "the frozen worker to be named")
        assert cli(*ask, UNSTUCK_LEASE_RENEW="0.2s").returncode == 1
        worker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not ailing(), 60, "the worker to be well again")


def test_only_a_frozen_coordinator_is_unhealthy_not_a_killed_one(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, cli: Cli
) -> None:
    settings = Settings(redis_url=redis_server.url)

    def well() -> int:
        return health_of(client, settings, "coordinator", HOST, 2.0).well

    with coordinator_processes(tmp_path, {"UNSTUCK_REDIS_URL": redis_server.url}) as processes:
        processes.tend(awake=2)
        wait_until(lambda: well() >= 2, 60, "two coordinators to be at work")
        assert cli("health", "coordinator").returncode == 0
        listed = [
            one
            for one in fleet.ProcessRegistry(client, fleet.KEYS).read()
            if isinstance(one, CoordinatorInfo)
        ]
        frozen, killed = (psutil.Process(one.pid) for one in listed[:2])
        frozen.send_signal(signal.SIGSTOP)
        killed.kill()

        def ailing() -> tuple[str, ...]:
            return health_of(client, settings, "coordinator", HOST, 2.0).ailing

        wait_until(
            lambda: any(f"coordinator {frozen.pid} " in one for one in ailing()),
            60,
            "the frozen one to be named",
        )
        assert not any(f"coordinator {killed.pid} " in one for one in ailing())
        frozen.send_signal(signal.SIGCONT)
        wait_until(lambda: not ailing() and well(), 60, "the frozen one to be well again")


def runner(pid: int, seen: float, name: str = "") -> RunnerInfo:
    return RunnerInfo(
        id=name or str(pid), host="h", pid=pid, worker_pid=1, queues=(), heard_at=seen
    )


@pytest.mark.parametrize(
    ("ages", "well", "ailing"),
    [
        ({7: 500.0}, 0, 1),  # it is there, and silent for 60 seconds
        ({}, 0, 0),  # it is gone
        ({7: 20.0}, 0, 0),  # another process has its number, and is younger than its last word
        ({7: 500.0, 8: 3.0}, 1, 1),
    ],
)
def test_a_silent_process_is_unhealthy_only_while_it_exists(
    ages: dict[int, float], well: int, ailing: int
) -> None:
    health = judged([runner(7, 940.0), runner(8, 999.0)], 1000.0, 30.0, ages.get)
    assert (health.well, len(health.ailing)) == (well, ailing)


def test_the_newer_of_two_records_of_a_pid_counts() -> None:
    # A container that was started again has the same host name, and often the same pids.
    health = judged(
        [runner(7, 999.0, "new"), runner(7, 900.0, "old")], 1000.0, 30.0, {7: 500.0}.get
    )
    assert (health.well, health.ailing) == (1, ())


def test_a_live_process_has_an_age_and_a_dead_one_does_not() -> None:
    assert (process_age(os.getpid()) or 0) > 0
    with psutil.Popen(["true"]) as gone:
        gone.wait()
    assert process_age(gone.pid) is None


def test_live_coordinators_are_unhealthy_if_no_sweep_progresses(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    settings, keys = Settings(redis_url=redis_server.url), fleet.KEYS
    fleet.ProcessRegistry(client, keys).note(
        lambda now: CoordinatorInfo(id="c", host=HOST, pid=os.getpid(), queues=(), heard_at=now)
    )
    client.hset(keys.alive, mapping={"at": client.time()[0] - 100, "period": "1"})
    assert (
        "no sweep has moved for 1m4"
        in health_of(client, settings, "coordinator", HOST, 30.0).ailing[0]
    )
    client.hset(keys.alive, "period", "60")
    assert health_of(client, settings, "coordinator", HOST, 30.0).well == 1, (
        "a fleet that sweeps seldom is not silent"
    )


@pytest.mark.parametrize("arguments", [("nobody",), ("worker", "--max-age", "soon")])
def test_an_invalid_role_or_time_exits_with_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("health", *arguments).returncode == 2
