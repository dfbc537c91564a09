"""Rows published = rows fed, exactly: files arrive all the time, jobs load them, and whoever is at work is killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import fleet
from tests.support.failpoints import OF_A_RUNNER, Effect, arming, order, reached_by
from tests.support.programs.coordinator_processes import CoordinatorProcesses, coordinator_processes
from tests.support.s3_server import S3Server
from tests.support.servers import RedisServer
from unstuck import Client, Settings, Status
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse

FILES, ROWS = 200, 5
STEPS = """
def load(spark, ctx):
    return ctx.input("events")
"""


@dataclass
class Feed:
    """A feeder that lets files arrive one by one, and jobs that load them."""

    stream: str
    warehouse: Warehouse
    put: Callable[[str, bytes], None]
    client: Client
    coordinators: CoordinatorProcesses
    arms: Path
    fed: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def feed(self) -> None:
        while self.fed < FILES and not self.over.is_set():
            ids = range(self.fed * ROWS, (self.fed + 1) * ROWS)
            # Names come in no order, so that a position that is one name would lose some.
            self.put(f"{(self.fed * 7919) % 1000:03d}.json", "".join(f'{{"id": {n}}}\n' for n in ids).encode())
            self.fed += 1
            self.over.wait(0.3)

    def submit(self) -> str:
        events = {"stream": self.stream, "format": "json", "schema": "id BIGINT"}
        group = {
            "name": "load",
            "spark": False,
            "retry": {"max": 20, "backoff": "1s"},
            "inputs": {"events": events},
            "steps": [{"python": "kill_steps:load", "output": "loads"}],
        }
        return self.client.submit({"name": "load", "groups": [group], "outputs": {"loads": {"mode": "append"}}}).id

    def ended(self, *jobs: str) -> None:
        """One of the jobs has loaded what was new; others may have found that it did."""
        reasons = []
        for job in jobs:
            view = self.client.wait(job)
            if view.job.status is not Status.FINISHED:
                assert view.job.reason is not None
                reasons.append(view.job.reason.code)
        assert set(reasons) <= {"CANNOT_RESUME"}
        assert len(reasons) < len(jobs)

    @contextmanager
    def death(self, point: Point) -> Iterator[None]:
        """The runner of a job in this block is killed at ``point``, once."""
        shot = order(self.arms, point, Effect.KILL)
        before = len(reached_by(shot))
        yield
        assert len(reached_by(shot)) == before + 1

    def ids(self) -> list[int]:
        """Those of all published rows."""
        found = []
        for one in self.warehouse.dataset("loads").files:
            with self.warehouse.storage.open(one.path) as file:
                found += [row["id"] for row in pq.read_table(file).to_pylist()]
        return sorted(found)


@pytest.fixture(params=["disk", "s3"])
def feed(
    redis_server: RedisServer, s3_server: S3Server, bucket: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Feed]:
    (arms := tmp_path / "arms").mkdir()
    (tmp_path / "kill_steps.py").write_text(STEPS)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_LEASE_TTL": "6s",
        "UNSTUCK_SWEEP_EVERY": "500ms",
        "UNSTUCK_SPARK_MASTER": "none",
        **s3_server.environ,
        **arming(arms),
    }
    (landing := tmp_path / "in").mkdir()

    def write(name: str, data: bytes) -> None:
        (landing / f"{name}.part").write_bytes(data)
        (landing / f"{name}.part").rename(landing / name)

    def put(name: str, data: bytes) -> None:
        s3_server.client("s3").put_object(Bucket=bucket.removeprefix("s3://"), Key=f"in/{name}", Body=data)

    on_disk = request.param == "disk"
    place = str(tmp_path / "warehouse") if on_disk else f"{bucket}/warehouse"
    stream = str(landing) if on_disk else f"{bucket}/in"
    with (
        fleet.worker(redis_server.url, tmp_path, environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        client = Client(Settings(redis_url=redis_server.url, warehouse=place))
        yield Feed(stream, Warehouse(place), write if on_disk else put, client, coordinators, arms)


@pytest.mark.long
def test_what_is_published_is_what_arrived_whoever_is_killed_meanwhile(feed: Feed) -> None:
    feeder = threading.Thread(target=feed.feed)
    feeder.start()
    deeds: list[Any] = [*OF_A_RUNNER, "coordinator", "twins", "coordinator", "twins", "twins"] * 2
    random.Random(7).shuffle(deeds)
    try:
        for deed in deeds:
            if isinstance(deed, Point):
                with feed.death(deed):
                    feed.ended(feed.submit())
            elif deed == "twins":
                feed.coordinators.kill()  # so that both are submitted before either publishes
                jobs = [feed.submit(), feed.submit()]
                feed.coordinators.tend(1)
                feed.ended(*jobs)
            else:
                job = feed.submit()
                feed.coordinators.kill()
                feed.coordinators.tend(1)
                feed.ended(job)
        feeder.join()
    finally:
        feed.over.set()
        feeder.join()
    feed.ended(feed.submit())
    assert feed.fed == FILES
    assert feed.ids() == [*range(FILES * ROWS)]
