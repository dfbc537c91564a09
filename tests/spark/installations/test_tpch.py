"""TPC-H on a real fleet: the tables are published by one job, and 22 queries read them in another;
DuckDB agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from examples.tpch.load import TABLES
from tests.support import fleet
from tests.support.paths import ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files

FOLDER = ROOT / "examples" / "tpch"
SCALE = 0.1


def plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def same(one: Any, other: Any) -> bool:
    """Equal; a mean of decimals has fewer places in Spark than in DuckDB."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4)
    return bool(one == other)


def answers(folder: Path, paths: Callable[[str], list[str]], scale: float) -> list[str]:
    """The queries whose published answers are not those that DuckDB gives for the published tables.

    Args:
        paths: the files of a dataset.
    """
    duck = duckdb.connect()
    for table in TABLES:
        duck.execute(f"CREATE VIEW {table} AS FROM read_parquet({paths(table)})")
    wrong = []
    for query in sorted(folder.glob("q*.sql")):
        truth = duck.execute(query.read_text().replace(":scale", str(scale))).fetchall()
        found = duck.execute(f"FROM read_parquet({paths(query.stem)})").fetchall()
        one, other = ([[plain(value) for value in row] for row in rows] for rows in (found, truth))
        alike = len(one) == len(other) and all(
            same(a, b)
            for left, right in zip(one, other, strict=True)
            for a, b in zip(left, right, strict=True)
        )
        if not alike:
            wrong.append(
                f"{query.stem}: {found[:3]} ({len(found)} rows), expected {truth[:3]} "
                f"({len(truth)})"
            )
    return wrong


@pytest.mark.long
@pytest.mark.timeout(600)
def test_22_tpch_queries_on_published_tables_match_duckdb(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    warehouse = str(tmp_path / "warehouse")
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": "local[2]",
        "UNSTUCK_SPARK_CONF": '{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}',
        "UNSTUCK_LEASE_TTL": "15s",
        "UNSTUCK_LEASE_RENEW": "3s",
        "PYTHONPATH": str(ROOT),
    }
    client = Client(Settings(redis_url=redis_server.url, warehouse=warehouse))
    with (
        fleet.worker(redis_server.url, tmp_path, queues="spark,light", environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        tables = client.submit(JobSpec.from_file(FOLDER / "tables.yaml", {"scale": SCALE})).id
        assert client.wait(tables).status is Status.FINISHED
        queries = client.submit(JobSpec.from_file(FOLDER / "queries.yaml", {"scale": SCALE})).id
        view = client.wait(queries)
    assert view.status is Status.FINISHED, view
    assert not (wrong := answers(FOLDER, partial(published_files, warehouse), SCALE)), "\n".join(
        wrong
    )
