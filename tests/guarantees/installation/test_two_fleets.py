"""Two fleets with different prefixes on one database: nothing of one reaches the other, and neither
sees the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck import Client, Settings, Status

JOBS = 12


@dataclass
class PrefixedFleet:
    prefix: str
    environ: dict[str, str]
    folder: Path
    worker: fleet.FleetWorker
    client: Client

    def asks(self, *command: str) -> str:
        """What a program of this fleet answers."""
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ran_on(self, job: str) -> set[int]:
        """The processes that ran the groups of a job, once it is finished."""
        view = self.client.wait(job)
        assert view.status is Status.FINISHED
        return {
            int(member.worker.rpartition(":")[2]) for one in view.groups for member in one.members
        }


def spec(name: str) -> dict[str, object]:
    return {
        "name": name,
        "groups": [{"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}],
    }


@pytest.fixture(scope="module")
def fleets(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[PrefixedFleet]]:
    """Each with a coordinator and a worker of its own, on one database."""
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    with ExitStack() as stack:
        made = []
        for prefix in ("one", "two"):
            folder = tmp_path_factory.mktemp(prefix)
            settings = Settings(
                redis_url=redis_server.url, warehouse=str(folder / "w"), prefix=prefix
            )
            environ = {
                "UNSTUCK_REDIS_URL": settings.redis_url,
                "UNSTUCK_WAREHOUSE": settings.warehouse,
                "UNSTUCK_PREFIX": prefix,
                "PYTHONPATH": PYTHONPATH,
            }
            with (folder / "coordinator.log").open("wb") as log:
                coordinator = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "celery",
                        "-A",
                        "unstuck.coordinator",
                        "worker",
                        "-n",
                        f"coordinator-{prefix}@here",
                    ],
                    cwd=folder,
                    env={**os.environ, **environ},
                    stdout=log,
                    stderr=log,
                )
            stack.callback(coordinator.wait)
            stack.callback(coordinator.kill)
            name = ["-n", f"worker-{prefix}@here"]
            worker = stack.enter_context(
                fleet.worker(
                    redis_server.url, folder, concurrency=2, environ=environ, arguments=name
                )
            )
            client = stack.enter_context(Client(settings))
            made.append(PrefixedFleet(prefix, environ, folder, worker, client))
        for one in made:
            wait_until(
                lambda one=one: one.client.fleet().coordinators, 60, "the coordinator to be there"
            )
        yield made


@pytest.mark.claim("Two fleets can share one Redis without seeing each other.")
@pytest.mark.variant
def test_jobs_run_only_on_workers_of_their_fleet(fleets: list[PrefixedFleet]) -> None:
    jobs = [(one, one.client.submit(spec(f"j{n}")).id) for n in range(JOBS) for one in fleets]
    ran = {
        one.prefix: set().union(*(one.ran_on(job) for of, job in jobs if of is one))
        for one in fleets
    }
    for one in fleets:
        assert ran[one.prefix] <= {runner.pid for runner in one.worker.runners}
        assert len(one.client.jobs()) == JOBS
        assert "UNKNOWN_JOB" not in one.worker.text(), "an attempt of the other fleet"


@pytest.mark.claim("Two fleets can share one Redis without seeing each other.")
def test_celery_messages_reach_the_fleet_with_their_prefix(
    fleets: list[PrefixedFleet], redis_server: RedisServer
) -> None:
    for one in fleets:
        with app_of_strangers(redis_server.url, one.prefix) as app:
            for n in range(4):
                sent = {"spec": spec("sent"), "key": f"sent-{n}"}
                app.send_task("unstuck.submit", kwargs=sent, queue="control")
        wait_until(
            lambda one=one: len(one.client.jobs(name="sent")) == 4, 30, f"all four in {one.prefix}"
        )


@pytest.mark.variant
def test_a_refused_celery_submit_becomes_a_dead_letter_with_its_errors(
    fleets: list[PrefixedFleet], redis_server: RedisServer
) -> None:
    one, other = fleets
    text = "name: broken\ngroups:\n  - {name: a, neds: [b], steps: [{python: 'm:f'}]}\n"
    with app_of_strangers(redis_server.url, one.prefix) as app:
        app.send_task(
            "unstuck.submit", kwargs={"spec": text, "key": "night", "by": "anna"}, queue="control"
        )
        wait_until(lambda: one.client.dead_letters.all(), 30, "the dead letter")
    (letter,) = one.client.dead_letters.all()
    shown = json.loads(one.asks("unstuck.cli", "dead", "show", letter.id, "--json"))
    assert (
        shown["reason"]
        == "SPEC_INVALID: <text>:3:15: groups[0].neds: unknown field 'neds'; did you mean 'needs'?"
    )
    assert shown["kind"] == "unstuck.submit"
    assert shown["fields"].pop("task_id")
    assert shown["fields"] == {"spec": text, "key": "night", "by": "anna"}
    assert one.client.dead_letters.replay(letter.id).answer == "REFUSED"
    assert one.client.dead_letters.drop(letter.id).answer == "DROPPED"
    assert other.client.dead_letters.all() == one.client.dead_letters.all() == []


@pytest.mark.claim("Two fleets can share one Redis without seeing each other.")
@pytest.mark.variant
def test_each_fleet_sees_only_its_own_state(
    fleets: list[PrefixedFleet], redis_server: RedisServer
) -> None:
    for one, other in (fleets, fleets[::-1]):
        wait_until(
            lambda one=one: len(one.client.fleet().runners) == 2, 30, "its runners to be shown"
        )
        shown = json.loads(one.asks("unstuck.cli", "fleet", "--json"))
        own = {runner.pid for runner in one.worker.runners}
        assert {runner["pid"] for runner in shown["runners"]} == own
        assert {queue["name"]: queue["listeners"] for queue in shown["queues"]} == {
            "control": 1,
            "light": 2,
        }
        told = json.loads(
            one.asks("celery", "-A", "unstuck.tasks", "inspect", "ping", "--timeout", "3", "--json")
        )
        assert set(told) == {f"worker-{one.prefix}@here", f"coordinator-{one.prefix}@here"}
        assert other.worker.process.poll() is None
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as store:
        strange = [
            key for key in store.scan_iter("*", count=1000) if not key.startswith(("one:", "two:"))
        ]
    assert strange == [], "every key of a fleet carries its prefix"
