"""Conf that only a new session takes: a fresh group gets one, and what counts as such is what Spark
says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.spec.spark_conf import is_static

pytestmark = pytest.mark.variant

STATIC = {"spark.sql.warehouse.dir": "file:/nowhere/own", "spark.driver.maxResultSize": "77m"}
RUN_TIME = {"spark.sql.shuffle.partitions": "7"}


def outcome(
    client: redis.Redis, folder: Path, job: str, step: str, params: Any, **group: Any
) -> Outcome:
    spec = {"name": "g", "steps": [{"python": f"fleet_steps:{step}", "params": params}], **group}
    return fleet.outcome(client, fleet.make_offer(client, folder / "warehouse", job, spec), 120)


@pytest.mark.parametrize("prewarm", [pytest.param("false", marks=pytest.mark.long), "true"])
def test_a_fresh_group_uses_its_static_conf_and_the_warm_session_is_kept(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path, prewarm: str
) -> None:
    keys, environ = {"keys": [*STATIC, *RUN_TIME]}, {"UNSTUCK_SPARK_PREWARM": prewarm}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
        warm = outcome(client, tmp_path, "one", "conf_of", keys).results
        own = outcome(
            client, tmp_path, "two", "conf_of", keys, fresh=True, conf={**STATIC, **RUN_TIME}
        ).results
        assert own["conf"] == {**STATIC, **RUN_TIME}
        assert outcome(client, tmp_path, "three", "conf_of", keys).results == warm
        assert own["pid"] != warm["pid"] == worker.runners[0].pid

        wrong = outcome(
            client,
            tmp_path,
            "four",
            "conf_of",
            keys,
            fresh=True,
            conf={"spark.driver.memory": "much"},
        )
        assert wrong.kind is OutcomeKind.FAILED, (
            "a conf that Java refuses is the fault of its group"
        )


@pytest.mark.long
def test_settings_are_static_exactly_if_spark_says_so(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    known = tmp_path / "known.json"
    with fleet.worker(redis_server.url, tmp_path, queues="spark"):
        assert (
            outcome(client, tmp_path, "five", "known_conf", {"path": str(known)}).kind
            is OutcomeKind.SUCCEEDED
        )
    run_time = json.loads(known.read_text())
    assert len(run_time) > 500
    assert sorted(key for key in run_time if is_static(key) is run_time[key]) == []
