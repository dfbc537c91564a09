"""Spark without a connector for the object store of the warehouse, and what it is told of the
store.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.network.s3_server import KEY, SECRET, S3Server
from tests.support.servers import RedisServer
from unstuck.tasks.driver.driver import store_conf
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant


def test_a_group_without_the_required_jars_fails_immediately_and_names_them(
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


def test_spark_gets_the_store_address_without_keys(s3_server: S3Server) -> None:
    conf = store_conf(s3_server.environ)
    assert conf["spark.hadoop.fs.s3a.endpoint"] == s3_server.endpoint
    assert conf["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert not {KEY, SECRET} & set(conf.values())
    assert store_conf({}) == {}
