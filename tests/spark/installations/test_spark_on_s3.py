"""Spark with its real connector, S3A, on two S3 servers: whole jobs with a fleet, and every row is
the one expected.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.installations.test_tpch import FOLDER, answers
from tests.support import fleet
from tests.support.network.s3_server import S3Server
from tests.support.paths import ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from tests.support.spark.jars import class_path
from unstuck import Client, JobSpec, Settings, Status
from unstuck.read_model.job import JobInfo
from unstuck.tasks.warehouse.log import Warehouse

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = """
import pandas as pd

def mixed(spark, ctx, kind):
    frames = {
        "spark": lambda: spark.createDataFrame([(1, "é")], "n long, name string"),
        "pandas": lambda: pd.DataFrame({"n": [2], "name": ["b"]}),
        "arrow": lambda: __import__("pyarrow").table({"n": [3], "name": ["c"]}),
    }
    ctx.output("mixed").write(frames[kind]())

def read_back(spark, ctx):
    # A step may ask Spark by name as well as by ctx.
    assert spark.table("numbers").count() == 4 and ctx.input("mixed").count() == 3
    return spark.sql("SELECT (SELECT sum(n) FROM numbers) AS numbers, (SELECT sum(n) FROM mixed) AS mixed")
"""


@dataclass
class S3Fleet:
    """A fleet of one worker and one coordinator on one S3 server."""

    server: S3Server
    client: Client
    uri: str
    home: Path

    def run(self, spec: dict[str, Any] | JobSpec) -> JobInfo:
        view = self.client.wait(self.client.submit(spec).id)
        assert view.status is Status.FINISHED, view
        return view

    def put(self, key: str, text: str) -> None:
        with closing(self.server.client("s3")) as s3:
            s3.put_object(Bucket=self.uri.split("/")[2], Key=key, Body=text.encode())

    def rows(self, dataset: str) -> list[dict[str, Any]]:
        files = Warehouse(self.uri).files_of(dataset).files
        tables = [
            pq.read_table(io.BytesIO(Warehouse(self.uri).storage.read(file.path))) for file in files
        ]
        parts = [{**file.partition} for file in files]
        rows = [
            {**part, **row}
            for table, part in zip(tables, parts, strict=True)
            for row in table.to_pylist()
        ]
        return sorted(rows, key=str)


@pytest.fixture(scope="module", params=["s3_server", "seaweedfs"])
def lake(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[S3Fleet]:
    conf = {
        "spark.driver.extraClassPath": class_path(),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    server: S3Server = request.getfixturevalue(request.param)
    home = tmp_path_factory.mktemp(request.param)
    (home / "on_s3.py").write_text(STEPS)
    uri = f"{server.make_bucket()}/w"
    environ = {
        **server.environ,
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "local[2]",
        "UNSTUCK_SPARK_CONF": json.dumps(conf),
        "PYTHONPATH": f"{ROOT}:{home}",
    }
    old = dict(os.environ)
    os.environ.update(server.environ)
    try:
        with (
            fleet.worker(redis_server.url, home, queues="spark,light", environ=environ),
            coordinator_processes(home, environ) as coordinators,
        ):
            coordinators.tend(1)
            yield S3Fleet(
                server, Client(Settings(redis_url=redis_server.url, warehouse=uri)), uri, home
            )
    finally:
        os.environ.clear()
        os.environ.update(old)


def test_forks_joins_appends_and_overwritten_partitions_are_correct_on_s3(lake: S3Fleet) -> None:
    numbers = {"sql": "SELECT id AS n, id % 2 AS part FROM range(4)", "output": "numbers"}
    by_day = "SELECT :n AS n, CAST(:day AS date) AS day, concat('a b/', :n) AS place"
    spec = {
        "name": "on-s3",
        "groups": [
            {"name": "numbers", "steps": [numbers]},
            {
                "name": "fork",
                "for_each": {"kind": ["spark", "pandas", "arrow"]},
                "steps": [{"python": "on_s3:mixed"}],
            },
            {
                "name": "join",
                "needs": ["numbers", "fork"],
                "steps": [{"python": "on_s3:read_back", "output": "total"}],
            },
            {"name": "loads", "steps": [{"sql": "SELECT :n AS n", "output": "loads"}]},
            {"name": "days", "steps": [{"sql": by_day, "output": "days"}]},
        ],
        "params": {"n": 1, "day": "2026-01-02"},
        "publish": ["numbers", "mixed", "total", "loads", "days"],
        "outputs": {
            "loads": {"mode": "append"},
            "days": {
                "mode": "partition_overwrite",
                "partition_by": ["day", "place"],
                "partitions": {"day": ":day"},
            },
        },
    }
    for n in (1, 2, 2):
        lake.run({**spec, "params": {"n": n, "day": f"2026-01-0{n + 1}"}})
    assert [row["n"] for row in lake.rows("numbers")] == [0, 1, 2, 3]
    assert [(row["n"], row["name"]) for row in lake.rows("mixed")] == [(1, "é"), (2, "b"), (3, "c")]
    assert lake.rows("total") == [{"numbers": 6, "mixed": 6}]
    assert [row["n"] for row in lake.rows("loads")] == [1, 2, 2]
    assert [(row["n"], str(row["day"]), row["place"]) for row in lake.rows("days")] == [
        (1, "2026-01-02", "a b/1"),
        (2, "2026-01-03", "a b/2"),
    ]


def test_a_stream_of_objects_loads_each_object_once_and_rejects_rows_by_rule(
    lake: S3Fleet,
) -> None:
    events = {
        "stream": f"{lake.uri.rpartition('/')[0]}/landing",
        "format": "json",
        "schema": "id BIGINT, at STRING",
    }
    spec = {
        "name": "load",
        "groups": [
            {
                "name": "load",
                "inputs": {"events": events},
                "steps": [{"sql": "SELECT id, at FROM events", "output": "events_in"}],
            }
        ],
        "outputs": {
            "events_in": {
                "mode": "append",
                "quality": {"rules": {"positive": "id > 0"}, "max_rejected_ratio": 0.9},
            }
        },
    }
    lake.put("landing/1.json", '{"id": 1, "at": "x"}\n{"id": -1, "at": "y"}\n')
    lake.run(spec)
    lake.put("landing/2.json", '{"id": 2, "at": "z"}\n')
    lake.run(spec)
    lake.run(spec)
    assert [row["id"] for row in lake.rows("events_in")] == [1, 2]
    assert [row["id"] for row in lake.rows("events_in__rejected")] == [-1]


def test_later_jobs_read_published_and_compacted_datasets(lake: S3Fleet) -> None:
    append = {
        "name": "small",
        "groups": [{"name": "g", "steps": [{"sql": "SELECT :n AS n", "output": "small"}]}],
        "outputs": {"small": {"mode": "append"}},
    }
    for n in range(3):
        lake.run({**append, "params": {"n": n}})
    read = {"name": "read", "inputs": {"small": "small"}}
    total = {
        "sql": "SELECT sum(n) AS total, count(*) AS rows FROM small",
        "output": "total_of_small",
    }
    lake.run(
        {
            "name": "compact",
            "groups": [{"name": "c", "spark": False, "steps": [{"compact": "small"}]}],
        }
    )
    lake.run({"name": "read", "groups": [{**read, "steps": [total]}]})
    assert lake.rows("total_of_small") == [{"total": 3, "rows": 3}]
    assert len(Warehouse(lake.uri).files_of("small").files) == 1


def test_22_tpch_queries_on_s3_match_duckdb(lake: S3Fleet, tmp_path: Path) -> None:
    lake.run(JobSpec.from_file(FOLDER / "tables.yaml", {"scale": 0.01}))
    lake.run(JobSpec.from_file(FOLDER / "queries.yaml", {"scale": 0.01}))
    assert not (wrong := answers(FOLDER, copied(lake, tmp_path), 0.01)), "\n".join(wrong)


def copied(lake: S3Fleet, folder: Path) -> Callable[[str], list[str]]:
    """Finds the files of a dataset of ``lake`` as copies in ``folder``, which DuckDB reads without
    an extension.
    """

    def paths(dataset: str) -> list[str]:
        copies = []
        for n, file in enumerate(Warehouse(lake.uri).files_of(dataset).files):
            copy = folder / f"{dataset}-{n}.parquet"
            copy.write_bytes(Warehouse(lake.uri).storage.read(file.path))
            copies.append(str(copy))
        return copies

    return paths
