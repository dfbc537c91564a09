"""Tables, databases and functions in Spark's catalog end with the attempt that made them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer
from tests.support.spark.spark_cluster import standalone
from unstuck.tasks.protocol.report import Outcome, OutcomeKind

pytestmark = pytest.mark.variant

NOTHING = {"tables": [], "databases": ["default"], "functions": [], "files": []}
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, home: Path) -> Iterator[fleet.FleetWorker]:
    with fleet.worker(
        redis_server.url, home, queues="spark", environ={"TMPDIR": str(home)}
    ) as running:
        yield running


def attempt(
    client: redis.Redis, folder: Path, job: str, step: dict[str, Any], output: str, **more: Any
) -> Outcome:
    steps = [{**step, **({"output": output} if output else {})}]
    offer = fleet.make_offer(
        client, folder / "warehouse", job, {"name": "g", "steps": steps}, **more
    )
    return fleet.outcome(client, offer, 180)


@pytest.fixture
def run(worker: fleet.FleetWorker, client: redis.Redis, tmp_path: Path) -> Run:
    def run(job: str, step: str, output: str = "", *, epoch: int = 1, **params: Any) -> Outcome:
        called = {"python": f"catalog_steps:{step}", "params": params}
        return attempt(client, tmp_path, job, called, output, epoch=epoch, nonce=f"n{epoch}")

    return run


def test_a_retry_appends_to_its_own_table(run: Run) -> None:
    assert run("acc", "appends", "x", fails=True).kind is OutcomeKind.FAILED
    assert run("acc", "appends", "x", epoch=2).rows == {"x": 3}


def test_no_day_reads_the_scratch_table_of_another_day(run: Run) -> None:
    assert run("monday", "keeps_the_first", "x", day="monday").results == {"day": ["monday"]}
    assert run("tuesday", "keeps_the_first", "x", day="tuesday").results == {"day": ["tuesday"]}


def test_sql_can_create_the_same_table_each_night(
    worker: fleet.FleetWorker, client: redis.Redis, tmp_path: Path
) -> None:
    made = {"sql": "CREATE TABLE orders AS SELECT 1 AS id"}
    for night in ("one", "two"):
        outcome = attempt(client, tmp_path, night, made, "")
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure


def test_catalog_tables_are_removed_and_user_tables_are_kept(
    run: Run, worker: fleet.FleetWorker, home: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "place" / "database" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("keep me")
    maker = run("makes", "makes", place=str(tmp_path / "place"))
    assert maker.kind is OutcomeKind.SUCCEEDED, maker.failure
    assert maker.results["rows"] == 1
    seen = run("looks", "looks").results
    assert {name: seen[name] for name in NOTHING} == NOTHING
    assert seen["pid"] == maker.results["pid"], "the runner was replaced"
    assert Path(seen["folder"]).is_relative_to(home), "not in the temporary folder of the runner"
    assert mine.read_text() == "keep me"
    assert list((tmp_path / "place" / "external").glob("*.parquet"))
    assert list((tmp_path / "place" / "database" / "kept").glob("*.parquet"))
    assert not (home / "spark-warehouse").exists()


@pytest.mark.long
def test_executors_write_tables_into_the_staging_of_the_attempt(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    conf = {
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    with standalone(tmp_path / "spark") as (master, _):
        environ = {
            "UNSTUCK_SPARK_MASTER": master,
            "UNSTUCK_SPARK_CONF": json.dumps(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": PYTHONPATH,
        }
        with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ):
            made = {"python": "catalog_steps:makes", "params": {"place": str(tmp_path / "place")}}
            maker = attempt(client, tmp_path, "makes", made, "")
            assert maker.kind is OutcomeKind.SUCCEEDED, maker.failure
            seen = attempt(client, tmp_path, "looks", {"python": "catalog_steps:looks"}, "").results
    assert {name: seen[name] for name in NOTHING} == NOTHING
    assert Path(seen["folder"]).is_relative_to(tmp_path / "warehouse")
    assert list((tmp_path / "warehouse").rglob("_catalog")) == []


@pytest.mark.long
def test_tables_of_a_user_metastore_are_kept(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
    }
    environ = {"UNSTUCK_SPARK_CONF": json.dumps(conf)}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ):
        first = attempt(client, tmp_path, "one", {"python": "catalog_steps:appends"}, "x")
        assert first.rows == {"x": 3}, first.failure
        assert attempt(client, tmp_path, "two", {"python": "catalog_steps:appends"}, "x").rows == {
            "x": 6
        }
