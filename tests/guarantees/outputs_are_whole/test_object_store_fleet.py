"""A fleet on S3: a publish that is aborted, work that a retry takes over, staging that is swept;
what readers find.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import psutil
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
import redis

from tests.support import fleet
from tests.support.failpoints import Effect, arming, order, reached_by
from tests.support.network.s3_server import S3Server
from tests.support.programs.coordinator_processes import CoordinatorProcesses, coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status, published_files
from unstuck.read_model.job import JobInfo
from unstuck.tasks.failpoints import Point
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse

STEPS = """
from pathlib import Path
import pyarrow as pa

def rows(spark, ctx, n, home, name):
    with open(Path(home, "ran"), "a") as ran:
        ran.write(name + "\\n")
    return pa.table({"n": [n] * 3})

def gate(spark, ctx, home):
    assert Path(home, "gate").exists(), "the gate is shut"
"""


Reader = Callable[[list[str]], list[int]]


def in_polars(paths: list[str]) -> list[int]:
    return pl.scan_parquet(paths).filter(pl.col("n") >= 0).collect()["n"].to_list()


def in_arrow(paths: list[str]) -> ds.Dataset:
    """Arrow takes one URI, or a list of paths with the file system that a URI names."""
    places = [pafs.FileSystem.from_uri(path) for path in paths]
    return ds.dataset([path for _, path in places], filesystem=places[0][0])


def in_duckdb(paths: list[str]) -> list[int]:
    """Without its extension httpfs, which it loads from elsewhere: over what Arrow reads."""
    rows = in_arrow(paths)  # noqa: F841 - DuckDB finds it by its name
    return [n for (n,) in duckdb.sql("SELECT n FROM rows WHERE n >= 0").fetchall()]


def in_pandas(paths: list[str]) -> list[int]:
    return [int(n) for path in paths for n in pd.read_parquet(path, dtype_backend="pyarrow")["n"]]


READERS: list[Reader] = [
    in_polars,
    in_duckdb,
    in_pandas,
    lambda paths: in_arrow(paths).to_table()["n"].to_pylist(),
]


@dataclass
class ObjectStoreFleet:
    """A fleet, and a warehouse of its own for each test."""

    uri: str
    home: Path
    arms: Path
    client: Client
    store: redis.Redis
    coordinators: CoordinatorProcesses

    def submit(self, n: int) -> str:
        def group(name: str, *more: dict[str, str]) -> dict[str, object]:
            given = {"n": n, "home": str(self.home), "name": name}
            step = {"python": "lake:rows", "output": name, "params": given}
            return {"name": name, "spark": False, "retry": {"max": 0}, "steps": [step, *more]}

        gate = {"python": "lake:gate", "params": {"home": str(self.home)}}
        groups = [group("first"), {**group("second", gate), "needs": ["first"]}]
        return self.client.submit(
            {"name": "lake", "groups": groups, "publish": ["first", "second"]}
        ).id

    def ended(self, job: str) -> JobInfo:
        def over() -> JobInfo | None:
            self.coordinators.tend(2)
            view = self.client.show(job)
            return view if view.terminal else None

        return wait_until(over, 60, f"the end of {job}")

    def read(self, name: str, version: int | None = None) -> list[int]:
        """What all readers find, each with its own client of the store, which reads the
        environment.
        """
        paths = published_files(self.uri, name, version)
        first, *others = [reader(paths) for reader in READERS]
        assert others == [first] * len(others)
        return first

    def entries(self) -> list[tuple[str, str]]:
        log = Warehouse(self.uri)
        return [
            (entry.kind, entry.job)
            for n in range(1, log.head() + 1)
            if (entry := log.entry(n)) is not None
        ]

    def staged(self, job: str) -> dict[str, list[str]]:
        """By group, the folders of its attempts; without the folder of logs."""
        files, top = Warehouse(self.uri).storage, f"_staging/{job}"
        return {
            group: files.names(f"{top}/{group}")
            for group in files.names(top)
            if group != "job.logs"
        }

    def ran(self) -> list[str]:
        return (self.home / "ran").read_text().split()


@pytest.fixture(scope="module")
def fleet_of_s3(
    redis_server: RedisServer, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CoordinatorProcesses, Path, redis.Redis]]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "lake.py").write_text(STEPS)
    (folder / "orders").mkdir()
    armed = arming(folder / "orders")
    environ = {
        **armed,
        **s3_server.environ,
        "PYTHONPATH": os.pathsep.join((armed["PYTHONPATH"], str(folder))),
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_LOCK_TTL": "1s",
        "UNSTUCK_SWEEP_EVERY": "300ms",
    }
    with (
        connect(redis_server.url) as store,
        fleet.worker(redis_server.url, folder, environ=environ),
        coordinator_processes(folder, environ) as coordinators,
    ):
        store.flushall()
        coordinators.tend(2)
        yield coordinators, folder / "orders", store


@pytest.fixture
def lake(
    fleet_of_s3: tuple[CoordinatorProcesses, Path, redis.Redis],
    bucket: str,
    redis_server: RedisServer,
    tmp_path: Path,
) -> Iterator[ObjectStoreFleet]:
    coordinators, arms, store = fleet_of_s3
    with Client(
        Settings(redis_url=redis_server.url, warehouse=f"{bucket}/w"), redis_client=store
    ) as client:
        yield ObjectStoreFleet(f"{bucket}/w", tmp_path, arms, client, store, coordinators)


@pytest.mark.claim(
    "A warehouse on S3 can be read, written, published to and vacuumed like one on a disk."
)
@pytest.mark.variant
@pytest.mark.parametrize("point", [Point.BEFORE_ENTRY, Point.AFTER_ENTRY])
def test_an_aborted_publish_is_either_published_or_aborted_never_both(
    lake: ObjectStoreFleet, point: Point
) -> None:
    # Given: something is published, and the publisher of the next job stands still at its slot
    (lake.home / "gate").touch()
    before = lake.submit(0)
    assert lake.ended(before).status is Status.FINISHED
    effect = order(lake.arms, point, Effect.FREEZE)
    job = lake.submit(1)
    wait_until(lambda: reached_by(effect), 60, "the publisher to freeze")
    (pid,) = reached_by(effect)
    try:
        wait_until(
            lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 10, "it to stand still"
        )
        # When: the user ends the job, and another coordinator asks the log
        assert lake.client.force_stop(job).answer == "DONE"
        ended = lake.ended(job)
    finally:
        psutil.Process(pid).resume()

    # Then: one entry stands, the status agrees with it, and so do readers, also when the publisher
    # goes on
    kind, n = ("abort", 0) if point is Point.BEFORE_ENTRY else ("package", 1)
    assert ended.status is (Status.CANCELED if kind == "abort" else Status.FINISHED)
    after = lake.submit(2)
    assert lake.ended(after).status is Status.FINISHED
    assert lake.entries() == [("package", before), (kind, job), ("package", after)]
    assert lake.client.show(job).status is ended.status
    assert lake.read("first", version=2) == [n] * 3
    assert lake.read("first") == lake.read("second") == [2] * 3


@pytest.mark.claim(
    "A warehouse on S3 can be read, written, published to and vacuumed like one on a disk."
)
@pytest.mark.variant
def test_a_retry_reuses_work_on_s3_and_the_sweep_keeps_needed_files(lake: ObjectStoreFleet) -> None:
    # Given: a job of which the first group succeeded, and the second failed after it had staged
    # rows
    failed = lake.submit(7)
    assert lake.ended(failed).status is Status.FAILED
    assert {group: len(names) for group, names in lake.staged(failed).items()} == {
        "first": 1,
        "second": 1,
    }

    # When: it is retried
    (lake.home / "gate").touch()
    retried = lake.ended(lake.client.retry(failed).id)

    # Then: the marker of the first group is taken over, and nothing of it runs again
    assert retried.status is Status.FINISHED
    reasons = {group.name: group.members[0].reason for group in retried.groups}
    assert reasons["first"] is not None
    assert reasons["first"].code == "ADOPTED"
    assert lake.ran() == ["first", "second", "second"]
    assert lake.read("first") == lake.read("second") == [7] * 3

    # When: nobody can hold a lease any more; then both jobs are forgotten
    jobs = (failed, retried.id)
    index = fleet.KEYS.staging_index

    def due() -> None:
        """Said again and again: a sweep that looked at a job before that puts it back for later."""
        lake.store.zadd(index, dict.fromkeys(jobs, 1.0), xx=True)

    def swept() -> bool:
        due()
        return "second" not in lake.staged(failed)

    wait_until(swept, 30, "the attempt that counts for nothing to be swept", every=0.2)
    assert len(lake.staged(failed)["first"]) == len(lake.staged(retried.id)["second"]) == 1

    for job in jobs:
        lake.store.delete(*lake.store.keys(f"*{{{job}}}*"))
        lake.store.zadd(fleet.KEYS.ended, {job: 1.0})

    def forgotten() -> bool:
        for job in jobs:
            if known := lake.store.hget(fleet.KEYS.staged, job):
                lake.store.hset(
                    fleet.KEYS.staged, job, json.dumps({**json.loads(known), "forget_at": 1.0})
                )
        due()
        return not any(lake.store.zscore(index, job) for job in jobs)

    wait_until(forgotten, 30, "both to be forgotten", every=0.2)

    # Then: what is published stands, and nothing else
    assert [*lake.staged(failed), *lake.staged(retried.id)] == ["first", "second"]
    names = Warehouse(lake.uri).storage.names
    left = [
        names(f"_staging/{job}/{group}")
        for job, group in zip(jobs, ("first", "second"), strict=True)
    ]
    assert [len(one) for one in left] == [1, 1], "not even their logs"
    assert lake.read("first") == lake.read("second") == [7] * 3
