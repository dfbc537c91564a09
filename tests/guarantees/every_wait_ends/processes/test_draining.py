"""A worker that is told to stop hands back what it runs: real workers, real signals, and a
coordinator that goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.machine import Limit
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.model.status import GroupState
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.process import Program
from unstuck.local.programs import Size
from unstuck.read_model.group import Member
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer

LONG = {
    "UNSTUCK_DRAIN_GRACE": "150s"
}  # what ends well before that has not ended because the grace was over
SLACK = 5.0  # seconds for what the processes do beside the graces
UNHURRIED = {"UNSTUCK_LEASE_TTL": "15s"}  # nothing lapses here, whatever the machine is at
# Members of half a second, two or three at a time: they last for more than half a minute.
LOAD = 200


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def make_offer(store: redis.Redis, tmp_path: Path) -> Any:
    """Offers one attempt of a step on a queue of this test's own, and waits until a runner holds
    it.
    """

    def make(step: str, **params: Any) -> Offer:
        job = f"drain-{os.urandom(4).hex()}"
        steps = [{"python": f"fleet_steps:{step}", "params": params}]
        group = {"name": "g", "spark": False, "queue": tmp_path.name, "steps": steps}
        offer = fleet.make_offer(store, tmp_path / "w", job, group)
        fleet.claimed(store, offer)
        # Its watchdog, which hands it back, may be a second younger than its runner.
        wait_until(lambda: any(one.job == job for one in fleet.listed(store)), 60, job)
        return offer

    return make


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A coordinator and a Valkey, without workers."""
    home = tmp_path_factory.mktemp("coordinator")
    patch = pytest.MonkeyPatch()
    patch.delenv("UNSTUCK_REDIS_URL", raising=False)
    patch.setenv("UNSTUCK_WAREHOUSE", str(home / "warehouse"))
    patch.setenv("UNSTUCK_LEASE_TTL", UNHURRIED["UNSTUCK_LEASE_TTL"])
    patch.setenv("UNSTUCK_DISPATCH_TIMEOUT", "1s")
    patch.setenv("PYTHONPATH", PYTHONPATH)
    try:
        with LocalFleet(Size(workers=0, light=0), home) as running:
            running.wait_ready()
            yield running
    finally:
        patch.undo()


@pytest.fixture
def client(coordinator: LocalFleet) -> Iterator[Client]:
    with Client(
        Settings(
            redis_url=coordinator.redis_url, warehouse=str(coordinator.home.path / "warehouse")
        )
    ) as client:
        yield client


def counted(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """A group that counts what it does in files of ``tmp_path / "effects"``."""
    (tmp_path / "effects").mkdir()
    params = {
        "folder": str(tmp_path / "effects"),
        "gate": str(tmp_path / "gate"),
        **more.pop("params", {}),
    }
    return {
        "name": "g",
        "spark": False,
        "steps": [{"python": "fleet_steps:counted", "params": params}],
        **more,
    }


def effects(tmp_path: Path) -> dict[str, list[str]]:
    return {file.name: file.read_text().split() for file in (tmp_path / "effects").iterdir()}


def members(client: Client, job: str, name: str = "") -> list[tuple[GroupState, Member]]:
    """Of one group, or of all."""
    groups = [group for group in client.show(job).groups if name in ("", group.name)]
    return [(member.state, member) for group in groups for member in group.members]


def charged(record: Member) -> tuple[int, int]:
    return record.failures, record.losses


def left(stopped: fleet.FleetWorker) -> None:
    """The worker has left by itself; by its alarm where Celery hung in its own shutdown, as it does
    now and then.
    """
    assert stopped.process.wait() in (0, -signal.SIGALRM), stopped.text()


@pytest.mark.claim(
    "A worker that stops hands back its attempts, and a rolling restart loses no work."
)
def test_an_attempt_longer_than_the_grace_is_handed_back_and_finished_elsewhere(
    coordinator: LocalFleet, client: Client, tmp_path: Path
) -> None:
    job = client.submit({"name": "drained", "groups": [counted(tmp_path)]}).id
    with fleet.worker(coordinator.redis_url, tmp_path, environ=UNHURRIED) as first:
        wait_until(lambda: effects(tmp_path), 60, "the step to begin")
        with fleet.worker(coordinator.redis_url, tmp_path, environ=UNHURRIED) as second:
            limit = Limit(1.0 + SLACK)
            first.process.send_signal(signal.SIGTERM)

            def again() -> bool:
                ((state, record),) = members(client, job)
                return state is GroupState.RUNNING and record.attempt == 2

            wait_until(again, 20, "the other worker to run it")
            assert limit.kept, limit
            ((_, record),) = members(client, job)
            assert (record.releases, *charged(record)) == (1, 0, 0)
            (tmp_path / "gate").touch()
            assert client.wait(job).status is Status.FINISHED
            left(first)
            assert second.process.poll() is None
    assert effects(tmp_path) == {"0": ["began", "began", "done"]}


def test_an_attempt_that_ends_within_the_grace_ends_normally(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path, make_offer: Any
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues=tmp_path.name, environ=LONG) as stopped:
        offer = make_offer("until", path=str(tmp_path / "go"))
        stopped.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "was told to stop" in stopped.text(), 10, "the worker to say so")
        (tmp_path / "go").touch()
        assert fleet.outcome(store, offer, 10).kind is OutcomeKind.SUCCEEDED
        left(stopped)


@pytest.mark.claim(
    "A worker that stops hands back its attempts, and a rolling restart loses no work."
)
@pytest.mark.variant
def test_a_step_that_ignores_the_stop_is_killed_after_both_graces_and_handed_back(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path, make_offer: Any
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues=tmp_path.name) as stopped:
        started = tmp_path / "started"
        offer = make_offer("sleep_on", started=str(started))
        wait_until(lambda: started.exists() and started.read_text(), 60, "the step to run")
        limit = Limit(1.0 + 3.0 + SLACK)
        stopped.process.send_signal(signal.SIGTERM)
        assert fleet.outcome(store, offer).kind is OutcomeKind.RELEASED
        assert limit.kept, limit
        wait_until(
            lambda: fleet.gone(int(started.read_text())), 5, "the step's own child to be gone"
        )
        left(stopped)


@pytest.mark.variant
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_hands_attempts_back_immediately(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path, make_offer: Any, second: int
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues=tmp_path.name, environ=LONG) as stopped:
        offer = make_offer("wait_for_cancel")
        stopped.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "was told to stop" in stopped.text(), 10, "the worker to say so")
        stopped.process.send_signal(second)
        assert fleet.outcome(store, offer, SLACK).kind is OutcomeKind.RELEASED
        left(stopped)


@pytest.mark.variant
def test_a_shutdown_through_the_broker_hands_attempts_back(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path, make_offer: Any
) -> None:
    name = f"{tmp_path.name}@here"
    with fleet.worker(
        redis_server.url, tmp_path, queues=tmp_path.name, arguments=["-n", name]
    ) as stopped:
        offer = make_offer("wait_for_cancel")
        with app_of_strangers(redis_server.url) as app:
            app.control.shutdown(destination=[name])
        assert fleet.outcome(store, offer, 1.0 + SLACK).kind is OutcomeKind.RELEASED
        left(stopped)


@pytest.mark.variant
def test_a_worker_killed_early_by_its_supervisor_has_already_handed_its_attempt_back(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path, make_offer: Any
) -> None:
    with fleet.worker(redis_server.url, tmp_path, queues=tmp_path.name, environ=LONG) as stopped:
        offer = make_offer("sleep_on")
        stopped.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "was told to stop" in stopped.text(), 10, "the worker to say so")
        stopped.process.kill()
        outcome = fleet.outcome(store, offer, SLACK)
        assert outcome.kind is OutcomeKind.RELEASED
        assert outcome.failure is not None
        assert "while its worker was told to stop" in outcome.failure.text


@pytest.fixture
def supervised(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalFleet]:
    """One worker under the supervision of ``unstuck up``."""
    for name, value in {
        "UNSTUCK_DRAIN_GRACE": "1s",
        "UNSTUCK_CANCEL_GRACE": "1s",
        "PYTHONPATH": PYTHONPATH,
    }.items():
        monkeypatch.setenv(name, value)
    name = f"{tmp_path.name}@here"
    celery = (
        sys.executable,
        "-m",
        "celery",
        "-A",
        "unstuck.tasks",
        "worker",
        "-Q",
        tmp_path.name,
        "-n",
        name,
    )
    program = Program("hangs", celery, {"UNSTUCK_REDIS_URL": redis_server.url}, name)
    with LocalFleet(home=tmp_path / "home", redis_url=redis_server.url, programs=[program]) as up:
        up.wait_ready()
        yield up


@pytest.mark.variant
def test_stopping_a_local_fleet_hands_attempts_back(
    supervised: LocalFleet, store: redis.Redis, make_offer: Any
) -> None:
    offer = make_offer("sleep_on")
    supervised.stop()
    assert fleet.outcome(store, offer, SLACK).kind is OutcomeKind.RELEASED


@pytest.mark.variant
def test_a_worker_that_hangs_during_shutdown_hands_back_and_is_killed_by_its_supervisor(
    supervised: LocalFleet, store: redis.Redis, make_offer: Any
) -> None:
    offer = make_offer("wait_for_cancel")
    (child,) = supervised.processes
    assert child.pid is not None
    below = psutil.Process(child.pid).children(recursive=True)
    assert len(below) > 1
    os.kill(child.pid, signal.SIGTERM)
    wait_until(
        lambda: "was told to stop" in child.log.read_text(), 10, "the worker to take the order"
    )
    os.kill(child.pid, signal.SIGSTOP)
    assert fleet.outcome(store, offer, 1.0 + SLACK).kind is OutcomeKind.RELEASED
    supervised.grace = 0.5
    supervised.stop()
    wait_until(
        lambda: all(fleet.gone(process.pid) for process in below), 10, "all of them to be gone"
    )


@pytest.mark.variant
def test_a_hanging_main_process_is_ended_by_its_own_alarm(tmp_path: Path) -> None:
    code = (
        "import re, sys, unstuck.tasks.settings\n"
        "unstuck.tasks.settings.LAST_STEPS = 0.2\n"
        "from unstuck.tasks.worker.shutdown import become_main_process\n"
        "from unstuck.tasks.process.shutdown_flag import ShutdownLevel\n"
        "worker = become_main_process('spark@here')\n"
        "worker.set_signal_handlers()\n"
        "worker.stop(ShutdownLevel.STOP)\n"
        "re.match(r'(a+)+$', 'a' * 60 + 'b')\n"  # for ever, and no other Python code runs meanwhile
    )
    env = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "UNSTUCK_DRAIN_GRACE": "100ms",
        "UNSTUCK_CANCEL_GRACE": "100ms",
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGALRM
    assert (
        "spark@here was told to stop and takes no new work. What runs has 0.1s to end"
        in ended.stderr
    )


@pytest.mark.claim(
    "A worker that stops hands back its attempts, and a rolling restart loses no work."
)
@pytest.mark.variant
@pytest.mark.timeout(500)
def test_two_rolling_restarts_under_load_lose_and_repeat_no_work(
    coordinator: LocalFleet, client: Client, tmp_path: Path
) -> None:
    """Two members outlast every restart, so each restart hands something back, or leaves it to the
    other.

    The members of the load are well within the grace: one that is handed back in its last line has
    done what it does, and does it again. There are more of them than two restarts see. What is left
    of them ends with the gate.
    """
    long = counted(
        tmp_path, queue="long", for_each={"n": [0, 1]}, params={"seconds": 0.5, "gated": 2}
    )
    load = {**long, "name": "load", "queue": "light", "for_each": {"n": list(range(2, LOAD + 2))}}
    handed_back = 0
    with ExitStack() as stack:

        def start() -> fleet.FleetWorker:
            grace = {"UNSTUCK_DRAIN_GRACE": "2s", **UNHURRIED}
            up = fleet.worker(
                coordinator.redis_url, tmp_path, queues="light,long", concurrency=2, environ=grace
            )
            return stack.enter_context(up)

        def holds(one: fleet.FleetWorker) -> int:
            """How many of the long ones it runs."""
            records = [
                record for state, record in members(client, job, "g") if state is GroupState.RUNNING
            ]
            return len(
                {record.worker.rpartition(":")[2] for record in records}
                & {str(r.pid) for r in one.runners}
            )

        def open_load() -> int:
            return sum(not state.terminal for state, _ in members(client, job, "load"))

        running = [start(), start()]
        job = client.submit({"name": "rolling", "groups": [long, load]}).id
        for _ in range(2):
            wait_until(lambda: sum(map(holds, running)) == 2, 60, "the two long ones to run")
            old = running.pop(0)
            handed_back += holds(old)
            old.process.send_signal(signal.SIGTERM)
            running.append(start())  # takes about as long as the old one has to leave
            left(old)
            assert open_load(), "the load was over before the restart was: proves nothing"
        (tmp_path / "gate").touch()
        assert client.wait(job).status is Status.FINISHED
    found = effects(tmp_path)
    assert len(found) == LOAD + 2
    assert {name: lines.count("done") for name, lines in found.items()} == dict.fromkeys(found, 1)
    records = [record for _, record in members(client, job)]
    assert {charged(record) for record in records} == {(0, 0)}
    assert sum(record.releases for _, record in members(client, job, "g")) == handed_back
    assert handed_back >= 2  # a worker that held none left both to the next
    # A run that was not done was handed back, and the other way round: nothing ran that nobody
    # knows of.
    assert sum(lines.count("began") for lines in found.values()) == len(found) + sum(
        r.releases for r in records
    )


@pytest.mark.variant
def test_a_stopping_worker_hands_a_spark_stage_back(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    spark = {"UNSTUCK_CANCEL_GRACE": "20s", "UNSTUCK_SPARK_MASTER": "local[1]"}
    with fleet.worker(redis_server.url, tmp_path, queues=tmp_path.name, environ=spark) as stopped:
        started = tmp_path / "started"
        steps = [{"python": "fleet_steps:slow_stage", "params": {"started": str(started)}}]
        offer = fleet.make_offer(
            store,
            tmp_path / "w",
            "drain-spark",
            {"name": "g", "queue": tmp_path.name, "steps": steps},
        )
        fleet.begun(store, offer, started)
        below = psutil.Process(stopped.process.pid).children(recursive=True)
        stopped.process.send_signal(signal.SIGTERM)
        assert fleet.outcome(store, offer, 60.0).kind is OutcomeKind.RELEASED
        left(stopped)
        wait_until(
            lambda: all(fleet.gone(process.pid) for process in below),
            10,
            "the JVM and all others to be gone",
        )
