"""A host that becomes unfit for Spark while a session runs on it: a step that fails there is not
charged.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.programs.processes import command_line
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant

STEPS = """
def uses_python(spark, ctx):
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()

def fails(spark, ctx):
    spark.range(1).count()
    raise ValueError("the data is wrong")
"""


def test_a_failing_step_is_charged_unless_its_host_is_unfit(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    python = tmp_path / "python-of-executors"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environ = {"PYSPARK_PYTHON": str(python), "UNSTUCK_SPARK_MASTER": "local[1]"}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
        # Given: a session that works
        group = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "x"}]}
        assert (
            fleet.outcome(client, fleet.make_offer(client, tmp_path / "w", "one", group), 180).kind
            == "succeeded"
        )

        # When: the Python of its executors goes away
        python.write_text("#!/bin/sh\nexit 1\n")
        for process in psutil.Process(worker.process.pid).children(recursive=True):
            if "pyspark.daemon" in command_line(process):
                process.kill()
        group = {"name": "g", "steps": [{"python": "steps:uses_python"}]}
        offer = fleet.make_offer(client, tmp_path / "w", "two", group)
        fleet.claimed(client, offer, wakes="spark")
        outcome = fleet.outcome(client, offer, 180)

        # Then: the host is charged, and takes nothing more
        assert outcome.failure is not None
        assert (outcome.kind, outcome.failure.code) == (OutcomeKind.LOST, "HOST_UNFIT"), (
            outcome.failure
        )
        assert "python-of-executors does not start" in outcome.failure.text
        offer = fleet.make_offer(client, tmp_path / "w", "three", group)
        wait_until(lambda: "no Spark work is taken: " in worker.text(), 60, "the offer to be left")
        assert "claimant" not in fleet.attempt(client, offer)

    # And: where a function over Arrow runs, a failure is the step's
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ):
        group = {"name": "g", "steps": [{"python": "steps:fails"}]}
        outcome = fleet.outcome(
            client, fleet.make_offer(client, tmp_path / "w", "four", group), 180
        )
        assert outcome.failure is not None
        assert (outcome.kind, outcome.failure.code) == (OutcomeKind.FAILED, "STEP_FAILED"), (
            outcome.failure
        )


def test_a_host_whose_executors_cannot_run_python_is_detected_before_any_step(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    """It answers its version and has pyarrow; only as an executor's daemon it does not start."""
    python = tmp_path / "python-of-executors"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pyspark.daemon*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    environ = {"PYSPARK_PYTHON": str(python), "UNSTUCK_SPARK_MASTER": "local[1]"}
    with fleet.worker(redis_server.url, tmp_path, queues="spark", environ=environ) as worker:
        group = {"name": "g", "steps": [{"sql": "SELECT 1 AS one", "output": "x"}]}
        outcome = fleet.outcome(client, fleet.make_offer(client, tmp_path / "w", "one", group), 180)
        assert outcome.failure is not None
        assert outcome.kind == OutcomeKind.RELEASED, outcome.failure
        assert "a function over Arrow fails in an executor" in outcome.failure.text
        offer = fleet.make_offer(client, tmp_path / "w", "two", group)
        wait_until(lambda: "no Spark work is taken: " in worker.text(), 60, "the offer to be left")
        assert "claimant" not in fleet.attempt(client, offer)
    assert not list((tmp_path / "w").rglob("*.parquet"))
