"""Streams: files arrive, job after job reads what is new, and each row is published once, whoever dies in between.

A real worker with Spark, real coordinators and signals; all tests share one fleet, each has a warehouse of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import fleet
from tests.support.failpoints import arming
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, Settings, Status, published_files
from unstuck.coordinator.views.jobs import JobView
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse

SQL = "SELECT id, at FROM events WHERE id > 0"
STEPS = """
from pathlib import Path
from pyspark.sql.functions import udf

def slow(spark, ctx, started):
    def wait(id):
        import time
        Path(started).touch()
        while True:
            time.sleep(0.1)
    return ctx.input("events").withColumn("id", udf(wait, "bigint")("id"))

def once(spark, ctx, gate):
    ctx.output("loads").write(ctx.input("events"))
    if not Path(gate).exists():
        raise RuntimeError("the gate is closed")
"""


@dataclass
class Stream:
    """A landing folder, and a warehouse that jobs load it into."""

    home: Path
    arms: Path
    client: Client

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(str(self.home / "warehouse"))

    def arrive(self, *ids: int) -> None:
        """A file arrives with a row for each of ``ids``."""
        landing = self.home / "landing"
        landing.mkdir(exist_ok=True)
        rows = "".join(json.dumps({"id": n, "at": f"at {n}"}) + "\n" for n in ids)
        (written := landing / f".{ids}").write_text(rows)
        written.rename(landing / f"{'-'.join(map(str, ids))}.json")

    def spec(self, *steps: dict[str, Any], generation: int = 1, **output: Any) -> dict[str, Any]:
        events = {
            "stream": str(self.home / "landing"),
            "format": "json",
            "schema": "id BIGINT, at STRING",
            "options": {"maxFilesPerTrigger": "1"},
            "generation": generation,
        }
        group = {
            "name": "load",
            "inputs": {"events": events},
            "steps": steps or [{"sql": SQL, "output": "loads"}],
            "retry": {"max": 3, "backoff": "10ms"},
        }
        return {"name": "load", "groups": [group], "outputs": {"loads": {"mode": "append", **output}}}

    def submit(self, *steps: dict[str, Any], **rest: Any) -> str:
        return self.client.submit(self.spec(*steps, **rest)).id

    def load(self, *steps: dict[str, Any], **rest: Any) -> JobView:
        return self.ended(self.submit(*steps, **rest))

    def ended(self, job: str) -> JobView:
        view = self.client.wait(job, 240)
        assert view.job.status is Status.FINISHED, view
        return view

    def ids(self) -> list[int]:
        """Those of all published rows."""
        paths = published_files(self.warehouse, "loads")
        return sorted(row["id"] for path in paths for row in pq.read_table(path).to_pylist())

    def rows_of(self, view: JobView) -> int:
        """How many rows the entry of a job has added."""
        (entry,) = [one for one in self.warehouse.history("loads", 100) if one.job == view.job.id]
        return entry.datasets["loads"].rows


@dataclass
class Fleet:
    server: RedisServer
    worker: fleet.FleetWorker
    arms: Path


@pytest.fixture(scope="module")
def running(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("fleet")
    (arms := home / "arms").mkdir()
    (home / "stream_steps.py").write_text(STEPS)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_LEASE_TTL": "6s",
        "UNSTUCK_SWEEP_EVERY": "500ms",
        "UNSTUCK_CANCEL_GRACE": "20s",
        "UNSTUCK_SPARK_MASTER": "local[1]",
        "UNSTUCK_SPARK_CONF": json.dumps({"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}),
        **arming(arms),
    }
    with (
        fleet.worker(redis_server.url, home, queues="spark", environ=environ) as worker,
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield Fleet(redis_server, worker, arms)


@pytest.fixture
def stream(running: Fleet, tmp_path: Path) -> Iterator[Stream]:
    with connect(running.server.url) as store:
        settings = Settings(redis_url=running.server.url, warehouse=str(tmp_path / "warehouse"))
        yield Stream(tmp_path, running.arms, Client(settings, redis_client=store))


def test_each_job_publishes_the_rows_of_the_files_that_no_job_before_it_has_published(stream: Stream) -> None:
    stream.arrive(1, -1)
    stream.arrive(2)
    stream.arrive(3, 4)
    assert stream.rows_of(stream.load()) == 4
    assert stream.ids() == [1, 2, 3, 4]
    stream.arrive(5)
    stream.arrive(6)
    assert stream.rows_of(stream.load()) == 2
    assert stream.ids() == [1, 2, 3, 4, 5, 6]
    assert stream.rows_of(stream.load()) == 0
    assert stream.ids() == [1, 2, 3, 4, 5, 6]
