"""The demo pipeline on a standalone cluster and on Spark Connect, and through the death of parts of
the cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import psutil
import pytest
from pyspark.sql import SparkSession

from examples.flights_truth import disagreements, truth
from tests.support import fleet
from tests.support.machine import seconds
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from tests.support.spark.spark_cluster import SparkProcess, connect_server, standalone
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.read_model.job import JobInfo
from unstuck.tasks.frames.parquet_write import write_parquet
from unstuck.tasks.frames.refusals import ValueRefused
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import arrivals
from unstuck.tasks.streams.read.files_read import TaskSizes, read_files
from unstuck.tasks.warehouse.files import Files

DISTINCT = """
def distinct(spark, ctx):
    return ctx.input("events").dropDuplicates(["id"])
"""
SPEC = ROOT / "examples" / "flights.yaml"


@contextmanager
def fleet_on(
    master: str, url: str, folder: Path, *, idle: str = "10m", **conf: str
) -> Iterator[Client]:
    """A worker whose sessions use ``master`` and end once they were ``idle``, and a coordinator."""
    warehouse = str(folder / "warehouse")
    environ = {
        "UNSTUCK_REDIS_URL": url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SPARK_MASTER": master,
        "UNSTUCK_SPARK_CONF": json.dumps(conf),
        "UNSTUCK_SESSION_IDLE": idle,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{PYTHONPATH}:{ROOT}",
    }
    with ExitStack() as stack:
        stack.enter_context(fleet.worker(url, folder, queues="spark,light", environ=environ))
        stack.enter_context(coordinator_processes(folder, environ)).tend(1)
        yield Client(Settings(redis_url=url, warehouse=warehouse))


def finishes(client: Client, job: str, folder: Path) -> None:
    """The job is FINISHED, and what it published is true."""
    ended = client.wait(job)
    assert ended.status is Status.FINISHED, ended
    for name, true in truth().items():
        rows = pl.read_parquet(published_files(str(folder / "warehouse"), name)).to_dicts()
        assert disagreements(name, rows, true) == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Sequence[SparkProcess]]]:
    with standalone(tmp_path / "spark") as (url, workers):
        yield url, workers


pytestmark = pytest.mark.long


@pytest.mark.parametrize("dies", ["nothing", "an executor", "a worker"])
def test_the_demo_on_a_standalone_cluster_finishes_despite_kills(
    redis_server: RedisServer,
    tmp_path: Path,
    cluster: tuple[str, Sequence[SparkProcess]],
    dies: str,
) -> None:
    master, workers = cluster
    conf = {
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    with fleet_on(master, redis_server.url, tmp_path, **conf) as client:
        job = client.submit(JobSpec.from_file(SPEC)).id

        def executor() -> tuple[SparkProcess, psutil.Process] | None:
            return next(((worker, one) for worker in workers for one in worker.executors), None)

        worker, one = wait_until(executor, 120, "an executor of the cluster")
        assert not client.show(job).terminal
        if dies == "an executor":
            one.kill()
        elif dies == "a worker":
            worker.kill()
        finishes(client, job, tmp_path)


def test_an_idle_session_returns_its_executors_to_the_cluster(
    redis_server: RedisServer, tmp_path: Path, cluster: tuple[str, Sequence[SparkProcess]]
) -> None:
    master, workers = cluster
    conf = {
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    group = {"name": "rows", "steps": [{"sql": "SELECT id AS n FROM range(10)", "output": "rows"}]}

    def held() -> list[psutil.Process]:
        return [one for worker in workers for one in worker.executors]

    with fleet_on(master, redis_server.url, tmp_path, idle="5s", **conf) as client:
        for _ in range(2):  # the second one gets a session, and executors, of its own
            job = client.submit({"name": "rows", "groups": [group]}).id
            wait_until(held, 120, "an executor of the cluster")
            ended = client.wait(job, timeout=seconds(90))
            assert ended.status is Status.FINISHED, ended
            wait_until(lambda: not held(), 60, "no executor to be held any more")


def test_executors_of_a_cluster_read_stream_files_and_keep_the_stream_state(
    redis_server: RedisServer, tmp_path: Path, cluster: tuple[str, Sequence[SparkProcess]]
) -> None:
    master, _ = cluster
    conf = {
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    (landing := tmp_path / "in").mkdir()
    # So many that tasks of Spark read them.
    for n in range(files := 2_100):
        (landing / f"{n}.json").write_text(f'{{"id": {n % (files // 2)}}}\n')
    events = {"stream": str(landing), "format": "json", "schema": "id BIGINT"}
    (tmp_path / "cluster_steps.py").write_text(DISTINCT)
    groups = [
        {
            "name": "load",
            "inputs": {"events": events},
            "steps": [{"sql": "SELECT id FROM events", "output": "loads"}],
        },
        {
            "name": "distinct",
            "inputs": {"events": {**events, "state": True}},
            "steps": [{"python": "cluster_steps:distinct", "output": "ids"}],
        },
    ]
    append = {name: {"mode": "append"} for name in ("loads", "ids")}
    with fleet_on(master, redis_server.url, tmp_path, **conf) as client:
        for rows in ((files, files // 2), (files + 1, files // 2)):
            ended = client.wait(
                client.submit({"name": "x", "groups": groups, "outputs": append}).id
            )
            assert ended.status is Status.FINISHED, ended
            found = [
                pl.read_parquet(published_files(str(tmp_path / "warehouse"), name))
                for name in append
            ]
            assert tuple(map(len, found)) == rows, (
                "the second job reads one file more, which has a known id"
            )
            (landing / "more.json").write_text('{"id": 0}\n')
    logs = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "warehouse").rglob("*.log")
    )
    assert "cannot read" not in logs
    assert "the driver reads all" not in logs


def test_the_demo_runs_on_spark_connect(redis_server: RedisServer, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    with (
        connect_server(tmp_path / "spark") as address,
        fleet_on(address, redis_server.url, tmp_path) as client,
    ):
        finishes(client, client.submit(JobSpec.from_file(SPEC)).id, tmp_path)


def test_spark_connect_loads_a_stream_and_refuses_one_with_state(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    (tmp_path / "in").mkdir()
    for name in ("a[1].json", "a1.json"):
        (tmp_path / "in" / name).write_text('{"id": 1}\n')
    events = {"stream": str(tmp_path / "in"), "format": "json", "schema": "id BIGINT"}

    def load(**more: bool) -> JobInfo:
        sql = {"sql": "SELECT * FROM events", "output": "loads"}
        group = {"name": "load", "inputs": {"events": {**events, **more}}, "steps": [sql]}
        spec = {"name": "x", "groups": [group], "outputs": {"loads": {"mode": "append"}}}
        return client.wait(client.submit(spec).id, timeout=seconds(90))

    with (
        connect_server(tmp_path / "spark") as address,
        fleet_on(address, redis_server.url, tmp_path) as client,
    ):
        assert load().status is Status.FINISHED
        rows = pl.read_parquet(published_files(str(tmp_path / "warehouse"), "loads"))
        ended = load(state=True)

        # Its tasks read the files as its driver does.
        stream = StreamInput.model_validate(events)
        session = SparkSession.builder.remote(address).create()
        files, sizes = Files(str(tmp_path / "warehouse")), TaskSizes(driver=0)
        found = read_files(session, arrivals(stream, {}).new, stream, files, "_staging/x", sizes)
        assert (found.frame.count(), sorted(found.rows.values())) == (2, [1, 1])

        (tmp_path / "names.txt").write_bytes("Ann\nZoë\n".encode("latin-1"))
        names = session.read.text(str(tmp_path / "names.txt"))
        with pytest.raises(ValueRefused, match=r"names\.txt, line 2, byte 3 \(0xEB\)"):
            write_parquet(names, str(tmp_path / "names"))
        session.stop()
    assert rows["id"].to_list() == [1, 1]
    reason = ended.groups[0].members[0].reason
    assert reason is not None
    assert reason.code == "UNRECOVERABLE"
    assert "with state: true, which is not supported with Spark Connect yet" in reason.text
