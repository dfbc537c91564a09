"""A month of nightly loads, on a local disk and on S3: by partitions into the warehouse, by
appending to a Delta table.

Every night is run twice, the second time after all. DuckDB, Polars, deltalake and Spark agree on
both.
"""

# DuckDB as pinned, over what Arrow reads, and an older one with its own extensions for Delta tables
# and S3. Spark has no connector for S3 here: it counts in local copies of the objects.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.guarantees.outputs_are_whole.test_nightly import DAYS, read_table
from tests.guarantees.outputs_are_whole.test_object_store_fleet import in_arrow
from tests.support import fleet
from tests.support.duckdb_extensions import query
from tests.support.network.s3_server import S3Server
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from tests.support.spark.jvm import end_jvm
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.cli.app import app
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse

COUNTS = """
name: counts
params: {paths: {type: list, required: true}}
publish: [counted, counted_lake]
groups:
  - name: counted
    inputs: {flights: flights_by_day}
    steps: [{sql: "SELECT day, count(*) AS count FROM flights GROUP BY day", output: counted}]
  - name: counted_lake
    steps: [{python: "fleet_steps:count_by_day", output: counted_lake}]
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


BY_DAY = "SELECT day, count(*) FROM"


def by_day(rows: Iterable[Sequence[Any]]) -> dict[str, int]:
    return {str(day): count for day, count in rows}


def count_in_copies(uri: str, paths: Iterable[str], folder: Path) -> dict[str, int]:
    """What Spark counts in copies of the files ``paths``, relative to ``uri``, made below
    ``folder``.
    """
    storage = Files(uri)
    folder.mkdir()
    for number, path in enumerate(paths):
        folder.joinpath(f"{number:04}.parquet").write_bytes(storage.read(path))
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        return by_day(spark.read.parquet(str(folder)).groupBy("day").count().collect())
    finally:
        spark.stop()
        end_jvm()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_datasets_stay_correct_over_a_month_of_nightly_loads(
    place: tuple[str, dict[str, str]],
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, reaches = place
    warehouse, table = f"{root}/warehouse", f"{root}/lake/flights"
    has_spark = not reaches
    environ = {
        **reaches,
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": "local[2]" if has_spark else "none",
        "PYTHONPATH": PYTHONPATH,
    }
    nightly = JobSpec.from_file(ROOT / "examples" / "nightly.yaml")
    lake = JobSpec.from_file(ROOT / "examples" / "nightly_delta.yaml").model_dump(
        mode="json", exclude_unset=True
    )
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
            assert {client.wait(job).status for job in jobs} == {Status.FINISHED}

        run(
            [nightly.with_params({"day": day}) for day in DAYS]
            + [to_delta.with_params({"day": day}) for day in DAYS]
        )
        run([nightly.with_params({"day": day}) for day in DAYS])
        before = size(warehouse)
        told = CliRunner().invoke(app, ["vacuum", "--keep", "1", "--older-than", "0s"], env=environ)
        assert told.exit_code == 0, told.output
        after = size(warehouse)
        if has_spark:
            run(
                [
                    JobSpec.from_values(
                        yaml.safe_load(COUNTS), {"paths": DeltaTable(table).file_uris()}
                    )
                ]
            )
    assert after < before * 0.4, "each night twice, and what the table has"

    flights = read_table("flights", ["month", "day"]).to_pandas().query("month == 1 and day <= 30")
    truth = {f"2013-01-{day:02}": int(n) for day, n in flights.groupby("day").size().items()}
    options = {name.lower(): value for name, value in reaches.items()}
    delta = DeltaTable(table, storage_options=options or None)
    with capsys.disabled():
        print(f"\n{root}: {before:,} bytes, {after:,} after the vacuum; {told.output.strip()}")
        print(
            "the Delta table: "
            f"{sum(delta.get_add_actions(flatten=True)['size_bytes'].to_pylist()):,} bytes"
        )
    assert delta.version() == len(DAYS) - 1, "one commit for each night"
    files = published_files(warehouse, "flights_by_day")
    in_warehouse, in_table = in_arrow(files), delta.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds them by name
    polars = {
        "warehouse": pl.read_parquet(files, storage_options=options),
        "Delta": pl.read_delta(table, storage_options=options or None),
    }
    scans = {"warehouse": f"read_parquet({files})", "Delta": f"delta_scan('{table}')"}
    found = {
        **{
            f"Polars, {name}": by_day(frame.group_by("day").len().rows())
            for name, frame in polars.items()
        },
        "deltalake": dict(Counter(map(str, delta.to_pyarrow_table()["day"].to_pylist()))),
        "DuckDB over Arrow, warehouse": by_day(
            duckdb.sql(f"{BY_DAY} in_warehouse GROUP BY day").fetchall()
        ),
        "DuckDB over Arrow, Delta": by_day(
            duckdb.sql(f"{BY_DAY} in_table GROUP BY day").fetchall()
        ),
        **{
            f"DuckDB, {name}": by_day(query(f"{BY_DAY} {scan} GROUP BY day", reaches))
            for name, scan in scans.items()
        },
    }
    if has_spark:
        for name in ("counted", "counted_lake"):
            (counted,) = published_files(warehouse, name)
            found[f"Spark, {name}"] = by_day(
                [(row["day"], row["count"]) for row in pq.read_table(counted).to_pylist()]
            )
    else:
        published = [file.path for file in Warehouse(warehouse).files_of("flights_by_day").files]
        found["Spark, copies, warehouse"] = count_in_copies(
            warehouse, published, tmp_path / "published"
        )
        objects = [uri.removeprefix(f"{table}/") for uri in delta.file_uris()]
        found["Spark, copies, Delta"] = count_in_copies(table, objects, tmp_path / "objects")
    assert {name: counts for name, counts in found.items() if counts != truth} == {}
