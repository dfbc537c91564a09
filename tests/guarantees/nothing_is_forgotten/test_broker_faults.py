"""A broker that answers and takes no writes, or is away for long: real processes wait for it, and
lose nothing.

One worker and one coordinator for all of it. They are started by ``impatient``, which cuts Celery's
own patience short.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.celery_plugins import impatient
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.model.status import GroupState

QUEUE = "troubled"
# Seconds from the end of the trouble to work done; Celery by itself waits for up to 30 each time.
BACK_WITHIN = 25.0
TRYING = "Trying again"


@dataclass(frozen=True)
class Refusal:
    """How a server comes to refuse writes, how that ends, and how it says so.

    ``listening``: it refuses BRPOP too, so that one who listens and hears nothing notices.
    """

    says: str
    begin: Callable[[redis.Redis], object]
    end: Callable[[redis.Redis], object]
    listening: bool = True


def _disk_is_broken(store: redis.Redis) -> None:
    (Path(store.config_get("dir")["dir"]) / "dump.rdb").mkdir()  # a snapshot cannot take its place
    store.config_set("save", "3600 1")
    store.bgsave()
    wait_until(
        lambda: store.info("persistence")["rdb_last_bgsave_status"] == "err",
        10,
        "the snapshot to fail",
    )


REFUSALS = {
    "a failover": Refusal(
        "read only replica",
        lambda store: store.replicaof("127.0.0.1", 1),
        lambda store: store.replicaof("NO", "ONE"),
    ),
    "a broken disk": Refusal(
        "MISCONF",
        _disk_is_broken,
        lambda store: store.config_set("stop-writes-on-bgsave-error", "no"),
    ),
    "a full memory": Refusal(
        "'maxmemory'",
        lambda store: store.config_set("maxmemory", 1),
        lambda store: store.config_set("maxmemory", 0),
        listening=False,
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("troubled"), aof=True)
    made.start()
    yield made
    made.stop()


class Since:
    """What a process has logged since this was made."""

    def __init__(self, process: fleet.FleetWorker) -> None:
        self._process, self._before = process, len(process.text())

    def text(self) -> str:
        return self._process.text()[self._before :]


@dataclass
class FleetWithRunningJob:
    """One worker with two runners, one coordinator, and a job whose step runs until the end of it
    all.
    """

    server: RedisServer
    store: redis.Redis
    worker: fleet.FleetWorker
    coordinator: fleet.FleetWorker
    client: Client
    home: Path
    held: str

    def submit(self, name: str, gate: Path) -> str:
        step = {"python": "fleet_steps:until", "params": {"path": str(gate)}}
        return self.client.submit(
            {
                "name": name,
                "groups": [{"name": "g", "spark": False, "queue": QUEUE, "steps": [step]}],
            }
        ).id

    def alive(self) -> None:
        for name, one in (("worker", self.worker), ("coordinator", self.coordinator)):
            assert one.process.poll() is None, f"the {name} has ended:\n{one.text()[-3000:]}"

    def finishes(self, job: str) -> None:
        def finished() -> bool:
            self.alive()
            return self.client.show(job).status is Status.FINISHED

        wait_until(finished, BACK_WITHIN, f"{job} to be done, once the trouble is over", every=0.1)


@contextmanager
def _coordinator(url: str, home: Path) -> Iterator[fleet.FleetWorker]:
    log = home / "coordinator.log"
    env = {
        **os.environ,
        **_SOON,
        "UNSTUCK_REDIS_URL": url,
        "PYTHONPATH": PYTHONPATH,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "impatient",
                "-A",
                "unstuck.coordinator",
                "worker",
                "-P",
                "threads",
                "-l",
                "INFO",
            ],
            env=env,
            stdout=out,
            stderr=out,
            cwd=home,
        )
    made = fleet.FleetWorker(process, log)
    try:
        with fleet.running(made):
            yield made
    finally:
        process.kill()
        process.wait()


_SOON = {
    "UNSTUCK_DISPATCH_TIMEOUT": "1s",
    "UNSTUCK_SWEEP_EVERY": "500ms",
}


@pytest.fixture(scope="module")
def troubled(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FleetWithRunningJob]:
    home = tmp_path_factory.mktemp("fleet")
    settings = Settings(redis_url=server.url, warehouse=str(home / "warehouse"))
    with (
        _coordinator(server.url, home) as coordinator,
        fleet.worker(
            server.url, home, queues=QUEUE, concurrency=2, environ=_SOON, program="impatient"
        ) as worker,
        redis.Redis.from_url(server.url, decode_responses=True) as store,
        Client(settings) as client,
    ):
        made = FleetWithRunningJob(server, store, worker, coordinator, client, home, "")
        made.held = made.submit("held", home / "held")
        wait_until(
            lambda: client.show(made.held).status is Status.RUNNING and coordinator.ready(),
            30,
            "a running step",
        )
        yield made


@contextmanager
def silenced(worker: fleet.FleetWorker, store: redis.Redis) -> Iterator[None]:
    """Its main process stands still and the server holds no BRPOP of it, so that a wake-up stays on
    the queue.
    """
    listening = psutil.Process(worker.process.pid)

    def held() -> bool:
        ports = {each.laddr.port for each in listening.net_connections("tcp") if each.laddr}
        return any(
            one["cmd"] == "brpop"
            and "b" in one["flags"]
            and int(one["addr"].rpartition(":")[2]) in ports
            for one in store.client_list()
        )

    listening.suspend()
    try:
        wait_until(lambda: not held(), 10, "the worker's last BRPOP to be over")
        yield
    finally:
        listening.resume()


def asleep(store: redis.Redis) -> bool:
    """The runner that runs nothing takes no offers by itself; for a moment after each attempt it
    would.

    Nor has its worker a wake-up for it that it has not begun yet.
    """
    if store.exists(fleet.KEYS.queue("unacked")):
        return False
    idle = [one.id for one in fleet.listed(store) if one.idle_since is not None]
    return len(idle) == 1 and float(store.hget(fleet.KEYS.polled, idle[0]) or -1) < 0


@pytest.mark.claim(
    "If Redis is unreachable or refuses writes, workers and coordinators wait, and steps continue."
)
@pytest.mark.parametrize("trouble", REFUSALS)
def test_a_worker_survives_a_broker_that_refuses_writes(
    troubled: FleetWithRunningJob, trouble: str
) -> None:
    refusal = REFUSALS[trouble]
    new = [Since(troubled.worker), Since(troubled.coordinator)]
    gate = troubled.home / trouble
    gate.touch()
    wait_until(lambda: asleep(troubled.store), 20, "the idle runner to wait for a wake-up")
    with silenced(troubled.worker, troubled.store):
        jobs = [troubled.submit("waits", gate)]

        def woken() -> bool:
            if troubled.client.show(jobs[-1]).status.terminal:
                # The runner had received a wake-up that it had not begun yet.
                jobs.append(troubled.submit("waits", gate))
            return bool(troubled.store.llen(fleet.KEYS.queue(QUEUE)))

        wait_until(woken, 10, "a wake-up on the queue")
        refusal.begin(troubled.store)

    def noticed() -> bool:
        """Both know of it, and the worker, which has an idle runner, has tried again."""
        troubled.alive()
        worker, coordinator = (each.text() for each in new)
        return (
            refusal.says in worker
            and refusal.says in coordinator
            and worker.count(TRYING) >= 2
            and (TRYING in coordinator or not refusal.listening)
        )

    try:
        wait_until(noticed, 20, "both to notice")
    finally:
        refusal.end(troubled.store)
    troubled.finishes(jobs[-1])
    assert troubled.client.show(troubled.held).status is Status.RUNNING
    for each in new:
        assert "Frequent restarts" not in each.text(), "a log that is flooded tells nothing"


@pytest.mark.claim(
    "If Redis is unreachable or refuses writes, workers and coordinators wait, and steps continue."
)
@pytest.mark.variant
def test_a_worker_survives_a_broker_outage_longer_than_the_celery_limit(
    troubled: FleetWithRunningJob,
) -> None:
    new = [Since(troubled.worker), Since(troubled.coordinator)]

    def tried() -> bool:
        troubled.alive()
        return all(each.text().count(TRYING) > impatient.TRIES for each in new)

    troubled.server.stop()
    wait_until(tried, 30, "both to try more often than Celery would by itself")
    troubled.server.start()
    (troubled.home / "held").touch()
    troubled.finishes(troubled.held)
    record = troubled.client.show(troubled.held).groups[0].members[0]
    assert (record.state, record.attempt) == (GroupState.SUCCEEDED, 1), (
        "the attempt that ran through all of it"
    )
    troubled.finishes(troubled.submit("again", troubled.home / "held"))


@pytest.mark.claim(
    "If Redis is unreachable or refuses writes, workers and coordinators wait, and steps continue."
)
@pytest.mark.variant
def test_a_broker_that_refuses_writes_does_not_count_as_a_stalled_worker(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A wake-up waits, a runner is idle, and nothing is received: for once that is not the worker's
    fault.
    """
    stalled_after = 1.0
    environ = {"UNSTUCK_STALLED_AFTER": f"{stalled_after}s"}
    with fleet.worker(redis_server.url, tmp_path, queues=QUEUE, environ=environ) as worker:
        try:
            with silenced(worker, client):
                group = {
                    "name": "g",
                    "spark": False,
                    "queue": QUEUE,
                    "steps": [{"python": "fleet_steps:my_pid"}],
                }
                fleet.make_offer(client, tmp_path / "w", "waits", group)
                client.config_set("min-replicas-to-write", 1)
            wait_until(lambda: "NOREPLICAS" in worker.text(), 30, "the worker to be refused")
            began = time.monotonic()
            wait_until(
                lambda: (
                    worker.process.poll() is not None
                    or time.monotonic() - began > 2.5 * stalled_after
                ),
                30,
            )
            assert worker.process.poll() is None, worker.text()[-2000:]
            assert "has stalled" not in worker.text()
            assert client.llen(fleet.KEYS.queue(QUEUE)) == 1
        finally:
            client.config_set("min-replicas-to-write", 0)
