"""What a step does to Spark fails no later group: on a fleet, in a local run and in the test kit
alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from unstuck import Settings
from unstuck.in_process.run_job import InProcess, JobResult
from unstuck.testing.fixture import Unstuck
from unstuck.testing.runs import JobRun
from unstuck.testing.shared_spark import SharedSpark

STEPS = """
def innocent(spark, ctx):
    assert spark.sparkContext.parallelize([1, 2]).map(lambda n: n + 1).sum() == 5

def stops(spark, ctx):
    spark.stop()

def kills(spark, ctx):
    jvm = spark.sparkContext._gateway.proc
    jvm.kill()
    jvm.wait()

def adds(spark, ctx):
    path = ctx.scratch / "lookup.json"
    path.write_text("x")
    spark.sparkContext.addFile(str(path))

def adds_and_raises(spark, ctx):
    adds(spark, ctx)
    raise ValueError("an ordinary error")
"""
Run = Callable[[str], str]
"""Runs a group of one step. Returns how it ended."""


def ended(run: JobResult | JobRun) -> str:
    group = run.group("g")
    return "succeeded" if group.reason is None else f"{group.reason.code}: {group.reason.text}"


@pytest.fixture
def on_fleet(redis_server: RedisServer, client: redis.Redis, tmp_path: Path) -> Iterator[Run]:
    numbers = count()

    def run(step: str) -> str:
        offer = fleet.make_offer(client, tmp_path / "w", f"job{next(numbers)}", group(step))
        outcome = fleet.outcome(client, offer, 180)
        return (
            str(outcome.kind)
            if outcome.failure is None
            else f"{outcome.failure.code}: {outcome.failure.text}"
        )

    (tmp_path / "after_steps.py").write_text(STEPS)
    with fleet.worker(
        redis_server.url, tmp_path, queues="spark", environ={"UNSTUCK_SPARK_MASTER": "local[1]"}
    ):
        yield run


@pytest.fixture
def in_process(tmp_path: Path, steps: None) -> Iterator[Run]:
    settings = Settings(spark_master="local[1]")
    with InProcess(tmp_path / "w", settings=settings) as here:
        yield lambda step: ended(here.run({"name": "j", "groups": [group(step)]}))


@pytest.fixture
def in_kit(tmp_path: Path, steps: None) -> Iterator[Run]:
    shared = SharedSpark(tmp_path / "jvm")
    kit = Unstuck(tmp_path, shared, root=ROOT, tell=lambda text: None)
    yield lambda step: ended(kit.run({"name": "j", "groups": [group(step)]}))
    shared.stop()


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "after_steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "after_steps", raising=False)


def group(step: str) -> dict[str, Any]:
    return {"name": "g", "retry": {"max": 0}, "steps": [{"python": f"after_steps:{step}"}]}


@pytest.mark.parametrize(
    "place", ["on_fleet", "in_process", pytest.param("in_kit", marks=pytest.mark.variant)]
)
def test_changes_to_spark_by_a_step_fail_no_later_group(
    place: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(place)
    for step in ("stops", "kills", "adds"):
        assert run(step) == "succeeded", step
        assert run("innocent") == "succeeded", f"after {step}"
    # The trial of the host does not take what the step left for a fault of the host.
    assert run("adds_and_raises").startswith("STEP_FAILED: ValueError: an ordinary error")
    assert run("innocent") == "succeeded"


def test_a_job_runs_in_a_process_with_a_session_of_the_test_kit(
    in_kit: Run, in_process: Run
) -> None:
    for run in (in_kit, in_process, in_kit):
        assert run("innocent") == "succeeded"
