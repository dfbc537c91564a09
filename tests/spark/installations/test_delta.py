"""Spark with its Delta connector: it reads what Unstuck wrote, and writes beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support import fleet
from tests.support.machine import seconds
from tests.support.paths import PYTHONPATH
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from tests.support.spark.jars import class_path
from unstuck import Client, Settings, Status, published_files

CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@pytest.mark.long
def test_spark_and_unstuck_read_and_append_to_the_same_delta_table(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    jars = class_path("delta")
    warehouse, table = str(tmp_path / "warehouse"), str(tmp_path / "lake" / "numbers")
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_CONF": json.dumps({**CONF, "spark.driver.extraClassPath": jars}),
        "PYTHONPATH": PYTHONPATH,
    }
    client = Client(Settings(redis_url=redis_server.url, warehouse=warehouse))

    def run(name: str, sql: str, **more: Any) -> None:
        step = {"sql": sql} if sql.startswith("INSERT") else {"sql": sql, "output": name}
        groups = [{"name": name, "steps": [step]}]
        ended = client.wait(
            client.submit({"name": name, "groups": groups, **more}).id, timeout=seconds(40)
        )
        assert ended.status is Status.FINISHED, ended

    def in_spark() -> list[int]:
        run("found", f"SELECT collect_list(n) AS n FROM delta.`{table}`")
        (file,) = published_files(warehouse, "found")
        return sorted(pq.read_table(file)["n"][0].as_py())

    into_the_table = {"outputs": {"numbers": {"format": "delta", "path": table, "mode": "append"}}}
    with (
        fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        run("numbers", "SELECT id AS n FROM range(3)", **into_the_table)
        assert in_spark() == [0, 1, 2]
        run("written", f"INSERT INTO delta.`{table}` SELECT id + 10 AS n FROM range(2)")
        run("numbers", "SELECT id + 20 AS n FROM range(1)", **into_the_table)
        assert in_spark() == [0, 1, 2, 10, 11, 20]
    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2, 10, 11, 20]
