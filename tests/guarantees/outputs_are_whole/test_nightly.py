"""A month of nightly loads through real workers and a coordinator: one dataset by partitions, one
by appending.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

from examples.nycflights import read_table
from tests.support import fleet
from tests.support.paths import ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.cli.app import app
from unstuck.tasks.warehouse.log import Warehouse

pytestmark = pytest.mark.variant

DAYS = [str(datetime.date(2013, 1, 1) + datetime.timedelta(days=n)) for n in range(30)]
AGAIN = DAYS[11]  # the night that is run a second time


@pytest.fixture
def client(redis_server: RedisServer, tmp_path: Path) -> Client:
    return Client(Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "warehouse")))


def test_a_nightly_load_publishes_each_day_of_a_month(
    client: Client, redis_server: RedisServer, tmp_path: Path
) -> None:
    spec = JobSpec.from_file(ROOT / "examples" / "nightly.yaml")
    warehouse = str(tmp_path / "warehouse")
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_WAREHOUSE": warehouse,
    }
    with (
        fleet.worker(
            redis_server.url, tmp_path, concurrency=2, environ={**environ, "PYTHONPATH": str(ROOT)}
        ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        # All at once, as after a weekend on which nothing ran: in any order, each night counts
        # once.
        jobs = [
            client.submit(spec.with_params({"day": day}), key=f"nightly-{day}").id for day in DAYS
        ]
        repeated = [
            client.submit(spec.with_params({"day": day}), key=f"nightly-{day}").id for day in DAYS
        ]
        assert repeated == jobs
        assert {client.wait(job).status for job in jobs} == {Status.FINISHED}
        again = client.submit(spec.with_params({"day": AGAIN})).id
        assert client.wait(again).status is Status.FINISHED

    flights = published_files(warehouse, "flights_by_day")
    truth = (
        read_table("flights", ["month", "day"])
        .to_pandas()
        .query("month == 1 and day <= 30")
        .groupby("day")
        .size()
    )
    counted = duckdb.sql(
        f"SELECT day, count(*) FROM read_parquet({flights}) GROUP BY day ORDER BY day"
    ).fetchall()
    assert {str(day): count for day, count in counted} == {
        f"2013-01-{day:02}": n for day, n in truth.items()
    }
    assert pl.read_parquet(flights).height == sum(truth)
    (replaced,) = [path for path in flights if again in path]
    assert pl.read_parquet(replaced)["day"].cast(str).unique().to_list() == [AGAIN]

    told = CliRunner().invoke(
        app, ["vacuum", "--keep", "1", "--older-than", "0s", "--json"], env=environ
    )
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["files"] == 1, "the file of the night that was run again"
    assert (
        duckdb.sql(
            f"SELECT day, count(*) FROM read_parquet({flights}) GROUP BY day ORDER BY day"
        ).fetchall()
        == counted
    )

    before = sorted(pl.read_parquet(published_files(warehouse, "loads")).rows())
    told = CliRunner().invoke(app, ["compact", "loads", "--json"], env=environ)
    assert told.exit_code == 0, told.output
    assert [json.loads(told.stdout)[name] for name in ("before", "after", "kept", "version")] == [
        31,
        1,
        0,
        32,
    ]
    assert sorted(pl.read_parquet(published_files(warehouse, "loads")).rows()) == before

    loads = pl.read_parquet(published_files(warehouse, "loads"))
    assert sorted(loads["day"].cast(str)) == sorted([*DAYS, AGAIN])
    history = Warehouse(warehouse).history("loads", 100)
    assert [entry.n for entry in history] == list(range(32, 0, -1))
    assert {entry.params["day"] for entry in history[1:]} == set(DAYS)
