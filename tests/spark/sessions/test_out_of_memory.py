"""A Spark driver whose JVM ran out of memory, or died, runs nothing more: one attempt is charged,
the next is not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

pytestmark = pytest.mark.variant

STEPS = """
import os, signal

def takes_all(spark, ctx):
    one = spark.sparkContext._gateway.new_array(spark._jvm.byte, 1)
    try:
        spark._jvm.java.util.Arrays.copyOf(one, 1_500_000_000)
    except Exception as error:
        ctx.result("said", type(error).__name__)

def kills_the_jvm(spark, ctx):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    spark.range(3).count()

def who(spark, ctx):
    ctx.result("pid", os.getpid())
    ctx.result("rows", spark.range(3).count())
"""
TOO_MUCH = {
    "sql": "SELECT length(repeat(string(id), 1500000000)) AS n FROM range(1)",
    "output": "x",
}


def test_a_jvm_that_ran_out_of_memory_or_was_killed_is_reported_plainly_and_runs_nothing(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    conf = {"spark.driver.memory": "512m"}

    def run(job: str, step: dict[str, Any]) -> Outcome:
        group = {"name": "g", "steps": [step]}
        offer = fleet.make_offer(client, tmp_path / "warehouse", job, group)

        def ended() -> bool:
            if not client.llen(fleet.KEYS.queue("spark")):
                fleet.wake(client, "spark")  # as every sweep does
            return "outcome" in fleet.attempt(client, offer)

        wait_until(ended, 180, f"the outcome of {offer}")
        return fleet.outcome(client, offer)

    def fails(job: str, step: dict[str, Any]) -> Failure:
        outcome = run(job, step)
        assert (outcome.kind, bool(outcome.failure)) == (OutcomeKind.FAILED, True), outcome
        assert outcome.failure is not None
        return outcome.failure

    def next_one_is_run_by_another(job: str) -> None:
        outcome = run(job, {"python": "steps:who"})
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
        assert outcome.results["rows"] == 3
        pids.append(outcome.results["pid"])
        assert len(set(pids)) == len(pids), "this runner has run one of the jobs before"

    pids: list[int] = []
    environ = {"UNSTUCK_SPARK_CONF": json.dumps(conf), "UNSTUCK_SPARK_MASTER": "local[1]"}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ):
        failure = fails("task", TOO_MUCH)
        assert (failure.code, failure.recoverable) == ("JVM_OUT_OF_MEMORY", True)
        assert "ran out of memory" in failure.text
        assert "spark.driver.memory (512m)" in failure.text
        assert "Java heap space" in failure.text
        next_one_is_run_by_another("after-task")

        outcome = run("caught", {"python": "steps:takes_all"})
        assert (outcome.kind, outcome.results) == (OutcomeKind.SUCCEEDED, {"said": "Py4JJavaError"})
        next_one_is_run_by_another("after-caught")

        failure = fails("killed", {"python": "steps:kills_the_jvm"})
        assert failure.code == "JVM_DIED"
        assert "was killed by signal SIGKILL" in failure.text
    assert [report["kind"] for report in fleet.reports(client)].count("lost") == 0
