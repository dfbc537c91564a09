"""A job that is written in Python, submitted, awaited and read through its handle, on a real worker
and coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest

from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, DatasetNotFound, Job, NoSuchGroup, Refused, Settings, Status
from unstuck.job_builder import load_job
from unstuck.testing import Unstuck

JOBS = """\
import pyarrow as pa

from unstuck import Job

job = Job("shop", params={"day": str, "fails": False}, publish=["sales"], outputs={"sales": {"mode": "append"}})


@job.group(output="sales", spark=False)
def load(spark, ctx, day):
    print("loading", day)
    ctx.result("rows", 2)
    return pa.table({"day": [day, day], "amount": [1, 2]})


@job.group(needs=[load], for_each={"part": [0, 1]}, spark=False, retry={"max": 0})
def check(spark, ctx, part, fails):
    ctx.result("part", part)
    if fails:
        raise ValueError("it fails as asked")
"""


@pytest.fixture
def shop(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Job, Client]]:
    (tmp_path / "jobs_of_shop.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_WAREHOUSE": str(tmp_path / "warehouse"),
    }
    with (
        fleet.worker(
            redis_server.url,
            tmp_path,
            concurrency=2,
            environ={**environ, "PYTHONPATH": str(tmp_path)},
        ),
        coordinator_processes(tmp_path, environ) as coordinators,
        Client(
            Settings(redis_url=redis_server.url, warehouse=environ["UNSTUCK_WAREHOUSE"])
        ) as client,
    ):
        coordinators.tend(1)
        yield load_job("jobs_of_shop:job"), client


def test_a_handle_waits_for_inspects_reads_and_retries_a_python_job(
    shop: tuple[Job, Client], unstuck: Unstuck
) -> None:
    job, client = shop
    handle = job.submit({"day": "monday"}, key="monday", client=client)
    assert (handle.new, job.submit({"day": "monday"}, key="monday", client=client).id) == (
        True,
        handle.id,
    )
    assert handle.wait(120).status is handle.status is Status.FINISHED
    assert handle.results == {"load": {"rows": 2}, "check": [{"part": 0}, {"part": 1}]}
    assert handle.read("sales").to_pylist() == [
        {"day": "monday", "amount": 1},
        {"day": "monday", "amount": 2},
    ]
    assert "loading monday" in "\n".join(handle.logs("load"))
    with pytest.raises(NoSuchGroup, match=r"no group laod; it has: .*; did you mean 'load'"):
        list(handle.logs("laod"))
    assert next(event["kind"] for event in handle.events()) == "SUBMITTED"
    assert "published as version 1" in handle.why()

    later = job.submit({"day": "tuesday"}, client=client)
    assert later.wait(120).status is Status.FINISHED
    # A handle reads what stood when its own job was published.
    assert handle.read("sales").num_rows == 2
    assert later.read("sales", to="pandas")["day"].tolist() == [
        "monday",
        "monday",
        "tuesday",
        "tuesday",
    ]
    later_rows = later.read("sales", to="duckdb")
    assert isinstance(later_rows, duckdb.DuckDBPyRelation)
    assert later_rows.aggregate("sum(amount)").fetchall() == [(6,)]
    with duckdb.connect() as mine:
        mine.register("sales", later.read("sales", mine))
        assert mine.sql("SELECT count(*) FROM sales WHERE day = 'tuesday'").fetchall() == [(2,)]
    frame = later.read("sales", unstuck.spark)
    assert [(row.day, row.amount) for row in frame.orderBy("day", "amount").collect()] == [
        *(("monday", 1), ("monday", 2), ("tuesday", 1), ("tuesday", 2))
    ]
    with pytest.raises(ValueError, match="a connection of DuckDB or a session of Spark, not"):
        later.read("sales", "polars")
    assert pl.read_parquet(later.files("sales")).height == 4

    failing = job.submit({"day": "friday", "fails": True}, client=client)
    assert failing.wait(120).status is Status.FAILED
    with pytest.raises(
        DatasetNotFound, match=f"job {failing.id}, which is FAILED, has published nothing"
    ):
        failing.read("sales")
    again = client.job(failing.id).retry(params={"fails": False}, reason="mended")
    assert again.wait(120).status is Status.FINISHED
    assert again.read("sales").num_rows == 6
    with pytest.raises(Refused):
        again.retry()
    assert again.cancel().answer == "REFUSED"


def test_a_client_accepts_a_python_job_like_its_spec(
    coordinator: Coordinator,
) -> None:
    client, monday = coordinator.client, {"day": "monday"}
    job = Job("days", params={"day": str})
    job.sql("all", "SELECT :day AS day", output="days")
    first = client.submit(job, params=monday, key="one")
    assert client.submit(job.spec(monday), key="one").id == first.id
    nightly = Job("nightly", schedule={"cron": "0 2 * * *", "zone": "UTC"})
    nightly.sql("all", "SELECT 1 AS n", output="n")
    assert client.schedules.set(nightly).answer == "DONE"
