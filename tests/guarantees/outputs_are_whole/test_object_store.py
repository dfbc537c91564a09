"""Packages on S3: whole or not there, in each mode, whoever is killed between the first staged byte and FINISHED."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support import fleet
from tests.support.coordinator_processes import coordinator_processes
from tests.support.failpoints import OF_A_COORDINATOR, OF_A_RUNNER, Strike, arming, order, reached_by
from tests.support.s3_server import SECRET, S3Server
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.coordinator.cli.app import app
from unstuck.tasks.failpoints import Point
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse

SPEC = """
name: lake
params: {n: 0}
groups:
  - name: load
    spark: false
    retry: {max: 3, backoff: 100ms}
    steps:
      - {python: "lake:rows", output: replaced}
      - {python: "lake:rows", output: appended}
      - {python: "lake:rows", output: parted}
outputs:
  appended: {mode: append}
  parted: {mode: partition_overwrite, partition_by: [part]}
"""
STEPS = """
import pyarrow as pa

def rows(spark, ctx, n):
    print("rows of", n)
    return pa.table({"n": [n] * 3, "part": ["a", "b", "c"]})
"""
DEATHS = [*OF_A_RUNNER, *OF_A_COORDINATOR]


def look(warehouse: Warehouse) -> int:
    """What a reader sees: the number of the job, whose package is whole; -1 before the first."""
    state = warehouse.state()
    if not state:
        return -1
    found: dict[str, list[dict[str, object]]] = {}
    for name, dataset in state.items():
        found[name] = []
        for data_file in dataset.files:
            with warehouse.storage.open(data_file.path) as file:
                found[name] += pq.ParquetFile(file).read().to_pylist()
    (n,) = {row["n"] for row in found["replaced"]}
    assert isinstance(n, int)
    assert [row["part"] for row in found["replaced"]] == ["a", "b", "c"]
    assert Counter(row["n"] for row in found["appended"]) == dict.fromkeys(range(n + 1), 3)
    assert sorted((row["part"], row["n"]) for row in found["parted"]) == [(part, n) for part in "abc"]
    return n


@pytest.mark.long
def test_each_package_is_whole_whoever_dies(
    redis_server: RedisServer, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    code, orders = tmp_path / "code", tmp_path / "orders"
    code.mkdir()
    orders.mkdir()
    (code / "lake.py").write_text(STEPS)
    armed = arming(orders)
    environ = {
        **armed,
        "PYTHONPATH": os.pathsep.join((armed["PYTHONPATH"], str(code))),
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_LOCK_TTL": "1s",
        "UNSTUCK_REPORT_IDLE": "1s",
        "UNSTUCK_SWEEP_EVERY": "300ms",
        "UNSTUCK_DISPATCH_TIMEOUT": "1s",
    }
    spec = JobSpec.from_text(SPEC)
    uris = {point: f"{bucket}/a team/{point}" for point in DEATHS}
    with (
        connect(redis_server.url) as store,
        fleet.worker(redis_server.url, tmp_path, concurrency=3, environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        store.flushall()
        seen: dict[Point, list[int]] = {point: [] for point in DEATHS}

        def submit(point: Point, n: int) -> str:
            with Client(Settings(redis_url=redis_server.url, warehouse=uris[point]), redis_client=store) as client:
                return client.submit(spec.with_params({"n": n})).id

        def ended(jobs: dict[Point, str]) -> bool:
            coordinators.tend(2)
            for point, uri in uris.items():
                seen[point].append(look(Warehouse(uri)))
            with Client(Settings(redis_url=redis_server.url), redis_client=store) as client:
                return all(client.show(job).job.terminal for job in jobs.values())

        first = {point: submit(point, 0) for point in DEATHS}
        wait_until(lambda: ended(first), 60, "the end of the first jobs")
        coordinators.kill()
        jobs = {point: submit(point, 1) for point in DEATHS}
        shots = {point: order(orders, point, Strike.KILL, job) for point, job in jobs.items()}
        wait_until(lambda: ended(jobs), 100, "the end of the jobs that are struck")

        with Client(Settings(redis_url=redis_server.url), redis_client=store) as client:
            assert {client.show(job).job.status for job in jobs.values()} == {Status.FINISHED}
        for point, uri in uris.items():
            assert reached_by(shots[point]), f"nobody came to {point}"
            assert seen[point] == sorted(seen[point]), "a reader never goes back"
            assert look(Warehouse(uri)) == 1
            assert Warehouse(uri).head() == 2, "no package twice"

        environ["UNSTUCK_WAREHOUSE"] = uri
        log = CliRunner().invoke(app, ["logs", jobs[point], "load"], env=environ)
        assert "rows of 1" in log.output
        told = CliRunner().invoke(app, ["doctor", "--json"], env=environ)
        assert f"{uri} can be written, and creates a file only if it is absent" in told.output
        kept = {"hash": store.hgetall, "string": store.get, "stream": store.xrange}
        everything = repr([kept[kind](key) for key in store.scan_iter() if (kind := str(store.type(key))) in kept])
        assert "a team" in everything
        assert SECRET not in everything

    for arguments in (["datasets"], ["datasets", "appended", "--history"]):
        told = CliRunner().invoke(app, arguments, env=environ)
        assert told.exit_code == 0, told.output
        assert "lake" in told.output
    told = CliRunner().invoke(app, ["vacuum", "--keep", "1", "--older-than", "0s", "--json"], env=environ)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["files"] == 4, "what the first job replaced, and its three partitions"
    assert look(Warehouse(uri)) == 1
    store_options = {name.lower(): value for name, value in s3_server.environ.items()}
    assert pl.read_parquet(published_files(uri, "parted"), storage_options=store_options).height == 3
