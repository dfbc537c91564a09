"""A warehouse on S3, as the readers and the commands of its users find it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support import fleet
from tests.support.network.s3_server import SECRET, S3Server
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.cli.app import app
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
  parted: {mode: partition_overwrite, partition_by: [part], partitions: {part: [a, b, c]}}
"""
STEPS = """
import pyarrow as pa

def rows(spark, ctx, n):
    print("rows of", n)
    return pa.table({"n": [n] * 3, "part": ["a", "b", "c"]})
"""


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
    assert sorted((row["part"], row["n"]) for row in found["parted"]) == [
        (part, n) for part in "abc"
    ]
    return n


@pytest.mark.claim(
    "A warehouse on S3 can be read, written, published to and vacuumed like one on a disk."
)
def test_read_commands_and_runs_work_on_s3(
    redis_server: RedisServer, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    code, uri = tmp_path / "code", f"{bucket}/a team/lake"
    code.mkdir()
    (code / "lake.py").write_text(STEPS)
    environ = {
        "PYTHONPATH": str(code),
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_WAREHOUSE": uri,
    }
    spec = JobSpec.from_text(SPEC)
    with (
        connect(redis_server.url) as store,
        fleet.worker(redis_server.url, tmp_path, environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
        Client(Settings(redis_url=redis_server.url, warehouse=uri), redis_client=store) as client,
    ):
        store.flushall()

        def ended() -> bool:
            coordinators.tend(1)
            return client.show(job).terminal

        for n in range(2):
            job = client.submit(spec.with_params({"n": n})).id
            wait_until(ended, 100, f"the end of {job}")
            assert client.show(job).status is Status.FINISHED
            assert look(Warehouse(uri)) == n

        log = CliRunner().invoke(app, ["logs", job, "load"], env=environ)
        assert "rows of 1" in log.output
        told = CliRunner().invoke(app, ["doctor", "--json"], env=environ)
        assert f"{uri} can be written, and creates a file only if it is absent" in told.output
        kept = {"hash": store.hgetall, "string": store.get, "stream": store.xrange}
        everything = repr(
            [kept[kind](key) for key in store.scan_iter() if (kind := str(store.type(key))) in kept]
        )
        assert "a team" in everything
        assert SECRET not in everything

    for arguments in (["datasets"], ["datasets", "appended", "--history"]):
        told = CliRunner().invoke(app, arguments, env=environ)
        assert told.exit_code == 0, told.output
        assert "lake" in told.output
    told = CliRunner().invoke(
        app, ["vacuum", "--keep", "1", "--older-than", "0s", "--json"], env=environ
    )
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["files"] == 4, (
        "what the first job replaced, and its three partitions"
    )
    assert look(Warehouse(uri)) == 1
    store_options = {name.lower(): value for name, value in s3_server.environ.items()}
    assert (
        pl.read_parquet(published_files(uri, "parted"), storage_options=store_options).height == 3
    )
