"""Spark without a connector for the object store of the warehouse, and with one where its jars are named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import redis

from tests.support import fleet
from tests.support.machine import seconds
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.s3_server import KEY, SECRET, S3Server
from tests.support.servers import RedisServer
from tests.support.spark.jars import jars_with
from unstuck import Client, Settings, Status
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.runner.driver import store_conf
from unstuck.tasks.warehouse.log import Warehouse


def test_a_group_fails_at_once_and_is_told_which_jars_are_missing(
    client: redis.Redis, redis_server: RedisServer, bucket: str, tmp_path: Path
) -> None:
    group = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "ones"}]}
    with fleet.worker(redis_server.url, tmp_path, queues="spark"):
        offer = fleet.make_offer(client, f"{bucket}/w", "job-1", group)
        outcome = fleet.outcome(client, offer, 120)
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("SPARK_LACKS_STORE", False)
    assert "org.apache.hadoop:hadoop-aws:3." in outcome.failure.text


def test_a_group_with_the_connector_reads_and_writes_a_warehouse_on_s3(
    client: redis.Redis, redis_server: RedisServer, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    conf = {"spark.jars": jars_with("hadoop-aws")}
    environ = {**s3_server.environ, "UNSTUCK_SPARK_CONF": json.dumps(conf), "UNSTUCK_REDIS_URL": redis_server.url}
    numbers = {"name": "numbers", "steps": [{"sql": "SELECT id AS n FROM range(3)", "output": "numbers"}]}
    total = {"sql": "SELECT sum(n) AS total, count(*) AS rows FROM numbers", "output": "total"}
    groups = [numbers, {"name": "total", "needs": ["numbers"], "steps": [total]}]
    unstuck = Client(Settings(redis_url=redis_server.url, warehouse=f"{bucket}/w"), redis_client=client)
    with (
        fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        ended = unstuck.wait(unstuck.submit({"name": "on-s3", "groups": groups}).id, timeout=seconds(80))
    assert ended.job.status is Status.FINISHED, ended
    (file,) = Warehouse(f"{bucket}/w").files_of("total").files
    found = pq.read_table(io.BytesIO(Warehouse(f"{bucket}/w").storage.read(file.path))).to_pylist()
    assert found == [{"total": 3, "rows": 3}]


def test_spark_is_told_where_the_store_is_and_no_key(s3_server: S3Server) -> None:
    conf = store_conf(s3_server.environ)
    assert conf["spark.hadoop.fs.s3a.endpoint"] == s3_server.endpoint
    assert conf["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert not {KEY, SECRET} & set(conf.values())
    assert store_conf({}) == {}
