"""A month of nightly loads, on a local disk and on S3: by partitions into the warehouse, by appending to a Delta table.

Every night is run twice, the second time after all. DuckDB, Polars, deltalake and, on the local disk, Spark agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.guarantees.outputs_are_whole.test_nightly import DAYS, read_table
from tests.support import fleet
from tests.support.paths import ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.s3_server import S3Server
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.coordinator.cli.app import app
from unstuck.tasks.warehouse.log import Warehouse

COUNTS = """
name: counts
groups:
  - name: counted
    inputs: {flights: flights_by_day}
    steps: [{sql: "SELECT day, count(*) AS flights FROM flights GROUP BY day", output: counted}]
"""


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The place of warehouse and table, and the environment by which processes reach it."""
    if request.param == "local":
        return str(tmp_path), {}
    server: S3Server = request.getfixturevalue("s3_server")
    return request.getfixturevalue("bucket"), server.environ


def size(uri: str) -> int:
    """Bytes of all data files below the warehouse, published or not."""
    storage = Warehouse(uri).storage
    total, folders = 0, ["_staging"]
    while folders:
        folder = folders.pop()
        for name in storage.names(folder):
            if name.endswith(".parquet"):
                total += storage.size(f"{folder}/{name}") or 0
            elif "." not in name or not name.endswith((".json", ".log")):
                folders.append(f"{folder}/{name}")
    return total


def by_day(rows: list[tuple[Any, int]]) -> dict[str, int]:
    return {str(day): count for day, count in rows}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_month_of_nights(
    place: tuple[str, dict[str, str]], redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, reaches = place
    warehouse, table = f"{root}/warehouse", f"{root}/lake/flights"
    has_spark = not reaches
    environ = {
        **reaches,
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": "local[2]" if has_spark else "none",
        "PYTHONPATH": str(ROOT),
    }
    nightly = JobSpec.from_file(ROOT / "examples" / "nightly.yaml")
    lake = JobSpec.from_file(ROOT / "examples" / "nightly_delta.yaml").model_dump(mode="json", exclude_unset=True)
    lake["outputs"]["flights_lake"]["path"] = table
    to_delta = JobSpec.model_validate(lake)
    client = Client(Settings(redis_url=redis_server.url, warehouse=warehouse))
    with (
        fleet.worker(redis_server.url, tmp_path, queues="light,spark", environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(2)

        def run(specs: list[JobSpec]) -> None:
            jobs = [client.submit(spec).id for spec in specs]
            assert {client.wait(job).job.status for job in jobs} == {Status.FINISHED}

        run([nightly.with_params({"day": day}) for day in DAYS] + [to_delta.with_params({"day": day}) for day in DAYS])
        run([nightly.with_params({"day": day}) for day in DAYS])
        before = size(warehouse)
        told = CliRunner().invoke(app, ["vacuum", "--keep", "1", "--older-than", "0s"], env=environ)
        assert told.exit_code == 0, told.output
        after = size(warehouse)
        if has_spark:
            run([JobSpec.from_text(COUNTS)])
    with capsys.disabled():
        print(f"\n{root}: {before:,} bytes, {after:,} after the vacuum; {told.output.strip()}")
    assert after < before * 0.4, "each night twice, and what the table has"

    flights = read_table("flights", ["month", "day"]).to_pandas().query("month == 1 and day <= 30")
    truth = {f"2013-01-{day:02}": int(n) for day, n in flights.groupby("day").size().items()}
    options = {name.lower(): value for name, value in reaches.items()}
    delta = DeltaTable(table, storage_options=options or None)
    assert delta.version() == len(DAYS) - 1, "one commit for each night"
    frames = {
        "Polars, warehouse": pl.read_parquet(published_files(warehouse, "flights_by_day"), storage_options=options),
        "Polars, Delta": pl.read_delta(table, storage_options=options or None),
        "deltalake": pl.from_arrow(delta.to_pyarrow_table()),
    }
    for name, frame in frames.items():
        assert isinstance(frame, pl.DataFrame)
        assert by_day(frame.group_by("day").len().rows()) == truth, name
    if has_spark:
        paths = published_files(warehouse, "flights_by_day")
        assert by_day(duckdb.sql(f"SELECT day, count(*) FROM read_parquet({paths}) GROUP BY day").fetchall()) == truth
        (counted,) = published_files(warehouse, "counted")
        assert {str(row["day"]): row["flights"] for row in pq.read_table(counted).to_pylist()} == truth, "Spark"
