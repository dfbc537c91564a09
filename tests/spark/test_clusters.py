"""The demo pipeline on a standalone cluster and on Spark Connect, and through the death of parts of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import psutil
import pytest

from examples.flights_truth import disagreements, truth
from tests.support import fleet
from tests.support.machine import seconds
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from tests.support.spark.spark_cluster import SparkProcess, connect_server, standalone
from unstuck import Client, JobSpec, Settings, Status, published_files

SPEC = ROOT / "examples" / "flights.yaml"


@contextmanager
def fleet_on(master: str, url: str, folder: Path, *, idle: str = "10m", **conf: str) -> Iterator[Client]:
    """A worker whose sessions use ``master`` and end once they were ``idle``, and a coordinator."""
    warehouse = str(folder / "warehouse")
    environ = {
        "UNSTUCK_REDIS_URL": url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": master,
        "UNSTUCK_SPARK_CONF": json.dumps(conf),
        "UNSTUCK_SESSION_IDLE": idle,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{PYTHONPATH}:{ROOT}",
    }
    with ExitStack() as stack:
        stack.enter_context(fleet.worker(url, folder, queues="spark,light", environ=environ))
        stack.enter_context(coordinator_processes(folder, environ)).tend(1)
        yield Client(Settings(redis_url=url, warehouse=warehouse))


def finishes(client: Client, job: str, folder: Path) -> None:
    """The job is FINISHED, and what it published is true."""
    ended = client.wait(job)
    assert ended.job.status is Status.FINISHED, ended
    for name, true in truth().items():
        rows = pl.read_parquet(published_files(str(folder / "warehouse"), name)).to_dicts()
        assert disagreements(name, rows, true) == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Sequence[SparkProcess]]]:
    with standalone(tmp_path / "spark") as (url, workers):
        yield url, workers


pytestmark = pytest.mark.long


@pytest.mark.parametrize("dies", ["nothing", "an executor", "a worker"])
def test_the_demo_on_a_standalone_cluster_finishes_whatever_dies(
    redis_server: RedisServer, tmp_path: Path, cluster: tuple[str, Sequence[SparkProcess]], dies: str
) -> None:
    master, workers = cluster
    conf = {"spark.cores.max": "1", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    with fleet_on(master, redis_server.url, tmp_path, **conf) as client:
        job = client.submit(JobSpec.from_file(SPEC)).id

        def executor() -> tuple[SparkProcess, psutil.Process] | None:
            return next(((worker, one) for worker in workers for one in worker.executors), None)

        worker, one = wait_until(executor, 120, "an executor of the cluster")
        assert not client.show(job).job.terminal
        if dies == "an executor":
            one.kill()
        elif dies == "a worker":
            worker.kill()
        finishes(client, job, tmp_path)


def test_an_idle_session_gives_its_executors_back_to_the_cluster(
    redis_server: RedisServer, tmp_path: Path, cluster: tuple[str, Sequence[SparkProcess]]
) -> None:
    master, workers = cluster
    conf = {"spark.cores.max": "1", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    group = {"name": "rows", "steps": [{"sql": "SELECT id AS n FROM range(10)", "output": "rows"}]}

    def held() -> list[psutil.Process]:
        return [one for worker in workers for one in worker.executors]

    with fleet_on(master, redis_server.url, tmp_path, idle="5s", **conf) as client:
        for number in range(2):  # the second one gets a session, and executors, of its own
            job = client.submit({"name": f"job{number}", "groups": [group]}).id
            wait_until(held, 120, "an executor of the cluster")
            ended = client.wait(job, timeout=seconds(90))
            assert ended.job.status is Status.FINISHED, ended
            wait_until(lambda: not held(), 60, "no executor to be held any more")


def test_the_demo_on_spark_connect(redis_server: RedisServer, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    with (
        connect_server(tmp_path / "spark") as address,
        fleet_on(address, redis_server.url, tmp_path) as client,
    ):
        finishes(client, client.submit(JobSpec.from_file(SPEC)).id, tmp_path)


def test_a_stream_with_state_on_spark_connect_is_refused_at_once(redis_server: RedisServer, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    events = {"stream": str(tmp_path), "format": "json", "schema": "id BIGINT", "state": True}
    group = {
        "name": "load",
        "inputs": {"events": events},
        "steps": [{"sql": "SELECT * FROM events", "output": "loads"}],
    }
    with (
        connect_server(tmp_path / "spark") as address,
        fleet_on(address, redis_server.url, tmp_path) as client,
    ):
        job = client.submit({"name": "x", "groups": [group], "outputs": {"loads": {"mode": "append"}}}).id
        ended = client.wait(job, timeout=seconds(90))
    reason = ended.groups[0].members[0].record.reason
    assert reason is not None
    assert reason.code == "UNRECOVERABLE"
    assert "with state: true, which is not supported with Spark Connect yet" in reason.text
