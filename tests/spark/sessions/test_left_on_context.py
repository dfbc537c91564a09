"""What the steps of a group leave on the Spark context reaches no later attempt."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from tests.support.spark.jvm import end_jvm
from unstuck import Settings
from unstuck.tasks.driver.context_snapshot import ContextSnapshot
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.protocol.report import Outcome, OutcomeKind

pytestmark = pytest.mark.variant

RECURSIVE, SECRET = "mapreduce.input.fileinputformat.input.dir.recursive", "fs.s3a.secret.key"
KEYS = [RECURSIVE, SECRET, "io.file.buffer.size"]
CLEAN = {
    RECURSIVE: None,
    SECRET: None,
    "io.file.buffer.size": "65536",
    "tenant": None,
    "description": None,
    "level": "WARN",
    "checkpoints": "None",
    "environment": None,
    "zone": "UTC",
    "files": 0,
}
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    with fleet.worker(
        redis_server.url, tmp_path_factory.mktemp("worker"), queues="spark"
    ) as running:
        yield running


@pytest.fixture
def run(worker: fleet.FleetWorker, client: redis.Redis, tmp_path: Path) -> Run:
    def run(job: str, step: str, **params: Any) -> Outcome:
        steps = [
            {
                "python": f"context_steps:{step}",
                "params": params,
                "output": "x" if step == "looks" else None,
            }
        ]
        offer = fleet.make_offer(client, tmp_path / "warehouse", job, {"name": "g", "steps": steps})
        outcome = fleet.outcome(client, offer, 120)
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
        return outcome

    return run


def test_restorable_context_state_is_restored_and_the_runner_continues(run: Run) -> None:
    clean = run("before", "looks", keys=KEYS)
    assert clean.results["seen"] == CLEAN
    polluter = run("pollutes", "pollutes", hadoop={RECURSIVE: "true"})
    assert polluter.results["sum"] == 1 << 20
    stranger = run("after", "looks", keys=KEYS)
    assert stranger.results == clean.results
    assert stranger.results["pid"] == polluter.results["pid"]


def test_a_file_system_key_is_removed_and_its_runner_is_replaced(
    run: Run, worker: fleet.FleetWorker
) -> None:
    polluter = run("secret", "pollutes", hadoop={SECRET: "not-for-you"})
    stranger = run("stranger", "looks", keys=KEYS)
    assert stranger.results["seen"] == CLEAN
    assert stranger.results["pid"] != polluter.results["pid"]
    wait_until(
        lambda: f"clients of file systems that know {SECRET}" in worker.text(),
        10,
        "the reason in the log",
    )
    assert "not-for-you" not in worker.text()


def test_a_file_added_by_a_group_fails_no_later_group(run: Run, worker: fleet.FleetWorker) -> None:
    adder = run("adds", "adds_a_file")
    innocent = run("innocent", "looks", keys=KEYS)
    assert innocent.rows == {"x": 4}
    assert innocent.results["pid"] != adder.results["pid"]
    assert "files, archives or jars that it added" in worker.text()


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    driver = Driver(Settings(spark_master="local[2]"))
    with driver.attempt("job/group/1/n/c", {}) as session:
        yield session
    driver.stop()
    end_jvm()


@pytest.mark.parametrize(
    "how",
    [
        "addFile",
        "ADD JAR",
        *(
            pytest.param(how, marks=pytest.mark.long)
            for how in ("addPyFile", "addArchive", "ADD FILE")
        ),
    ],
)
def test_every_addition_to_the_context_is_detected(session: Any, tmp_path: Path, how: str) -> None:
    snapshot = ContextSnapshot(session.sparkContext, "UTC")
    assert snapshot.put_back() == []
    path = tmp_path / f"{how.replace(' ', '-')}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("helper.py", "x = 1\n")
    if how.startswith("ADD"):
        session.sql(f"{how} '{path}'")
    else:
        getattr(session.sparkContext, how)(str(path))
    assert snapshot.put_back() == ["files, archives or jars that it added"]
