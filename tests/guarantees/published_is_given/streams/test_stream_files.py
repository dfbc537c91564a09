"""Files of a stream through whole jobs: the rows of the files are published, and what is bad is
told with its place.

One worker takes groups with Spark and without it; each test has a landing folder and a warehouse of
its own.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status, published_files
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.coordinator.publishing.streams.sources_read import sources_of
from unstuck.read_model.job import JobInfo
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse

STEPS = """
import pathlib
import time


def load(spark, ctx):
    ctx.output("loads").write(ctx.input("events"))


def held(spark, ctx, gate, seen):
    load(spark, ctx)
    pathlib.Path(seen).write_text("written")
    while pathlib.Path(gate).exists():
        time.sleep(0.05)
"""


@dataclass
class FolderLoads:
    """Jobs that load a folder, with Spark or without it."""

    home: Path
    client: Client
    spark: bool

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(str(self.home / "warehouse"))

    def arrive(self, **files: bytes | str) -> None:
        self.files({name.replace("__", "."): content for name, content in files.items()})

    def files(self, files: dict[str, bytes | str]) -> None:
        (landing := self.home / "in").mkdir(exist_ok=True)
        for name, content in files.items():
            (landing / name).write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )

    def run(self, output: dict[str, Any] | None = None, **events: Any) -> JobInfo:
        return self.client.wait(self.client.submit(self.spec(output, **events)).id)

    def spec(self, output: dict[str, Any] | None = None, **events: Any) -> dict[str, Any]:
        stream = {
            "stream": str(self.home / "in"),
            "format": "csv",
            "schema": "id BIGINT, name STRING",
            "options": {"header": "true"},
            **events,
        }
        step: dict[str, Any] = {"python": "file_steps:load"}
        group: dict[str, Any] = {
            "name": "load",
            "spark": False,
            "inputs": {"events": stream},
            "steps": [step],
        }
        if self.spark:
            group |= {"spark": True, "steps": [{"sql": "SELECT * FROM events", "output": "loads"}]}
        return {
            "name": f"load_{self.home.name}",
            "groups": [{**group, "retry": {"max": 3, "backoff": "1ms"}}],
            "outputs": {"loads": {"mode": "append", **(output or {})}},
        }

    def load(self, output: dict[str, Any] | None = None, **events: Any) -> dict[str, Any]:
        """Returns the counts of the stream."""
        view = self.run(output, **events)
        assert view.status is Status.FINISHED, view
        results = view.groups[0].members[0].results
        assert results is not None
        return results["events"]  # type: ignore[no-any-return]

    def refused(self, **events: Any) -> tuple[str, str]:
        """Code and text of the failure of the only attempt of a job that publishes nothing."""
        before = self.warehouse.head()
        view = self.run(**events)
        assert view.status is Status.FAILED, view
        assert self.warehouse.head() == before
        record = view.groups[0].members[0]
        assert record.reason is not None
        assert record.attempt == 1, "no retry mends a file"
        return record.reason.code, record.reason.text

    def rows(self, dataset: str = "loads") -> list[dict[str, Any]]:
        found = [
            row
            for path in published_files(self.warehouse, dataset)
            for row in pq.read_table(path).to_pylist()
        ]
        return sorted(found, key=lambda row: str(row.get("id")))


@pytest.fixture(scope="module")
def server(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    home = tmp_path_factory.mktemp("fleet")
    (home / "file_steps.py").write_text(STEPS)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SWEEP_EVERY": "500ms",
        "UNSTUCK_SPARK_MASTER": "local[1]",
        "UNSTUCK_SPARK_CONF": json.dumps(
            {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
        ),
    }
    with (
        fleet.worker(redis_server.url, home, queues="light,spark", environ=environ),
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield redis_server


@pytest.fixture(params=[True, False], ids=["spark", "light"])
def load(
    server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[FolderLoads]:
    with connect(server.url) as store:
        settings = Settings(redis_url=server.url, warehouse=str(tmp_path / "warehouse"))
        yield FolderLoads(tmp_path, Client(settings, redis_client=store), request.param)
    (tmp_path / "gate").unlink(missing_ok=True)


@pytest.mark.claim("A stream of files publishes each row once, whichever process is killed.")
@pytest.mark.variant
def test_each_row_is_published_once_for_any_file_name(load: FolderLoads) -> None:
    names = [
        "a[1].csv",
        "a{1,2}.csv",
        "a*.csv",
        "a?.csv",
        "a\\b.csv",
        "a:b.csv",
        "ü b%20.csv",
        "a1.csv",
        "ab.csv",
    ]
    load.files({name: f"name,id\nn{at},{at}\n" for at, name in enumerate(names)})
    assert load.load()["files"] == len(names)
    assert load.rows() == [{"id": at, "name": f"n{at}"} for at, _ in enumerate(names)]
    load.arrive(later__csv='\ufeffid,name\r\n9,"x\r\ny"\r\n')
    assert load.load()["files"] == 1
    assert load.rows()[-1] == {"id": 9, "name": "x\r\ny"}
    assert not [path for path in load.home.rglob("*.arrived") if path.is_dir()]


@pytest.mark.claim("A stream of files publishes each row once, whichever process is killed.")
def test_a_bad_file_fails_one_attempt_with_its_place_and_publishes_nothing(
    load: FolderLoads,
) -> None:
    load.arrive(good__csv="id,name\n1,ann\n", bad__csv="id,name\n2,ben\nx,dan\n")
    code, text = load.refused()
    assert code == "BAD_FILE"
    assert (
        f"{load.home}/in/bad.csv, line 3: the column id is to be bigint, and holds the text x"
        in text
    )
    load.arrive(bad__csv="id,nom\n2,ben\n")
    code, text = load.refused()
    assert code == "BAD_FILE"
    assert (
        "bad.csv: the file has the columns id, nom, and the schema has id, name: it lacks name "
        "and "
        "has nom"
    ) in text
    assert load.load(on_other_columns="allow")["files"] == 2
    assert load.rows() == [{"id": 1, "name": "ann"}, {"id": 2, "name": None}]


def test_a_quarantined_file_is_published_with_its_error_and_not_retried(
    load: FolderLoads,
) -> None:
    whole = gzip.compress(b"id,name\n" + b"7,x\n" * 999)
    load.arrive(
        good__csv="id,name\n1,ann\n", bad__csv="id,name\n2,ben\nx,dan\n", cut__csv__gz=whole[:-20]
    )
    counts = load.load(on_bad_file="skip")
    assert (counts["files"], counts["put_aside"]) == (1, 2)
    assert load.rows() == [{"id": 1, "name": "ann"}]
    bad, cut = sorted(load.rows("loads__rejected"), key=lambda row: row["_file"])
    assert (bad["_rejected_by"], bad["_file"]) == (["on_bad_file"], f"{load.home}/in/bad.csv")
    assert (bad["_line"], "holds the text x" in bad["_error"]) == (3, True)
    assert (cut["_line"], "cut short" in cut["_error"]) == (None, True)
    (entry,) = load.warehouse.history("loads", 1)
    sources = {
        Path(one.source).name: (one.rows, one.put_aside)
        for one in sources_of(load.warehouse, "loads", entry)
    }
    assert sources == {
        "good.csv": (1, ""),
        "bad.csv": (None, bad["_error"]),
        "cut.csv.gz": (None, cut["_error"]),
    }
    load.arrive(more__csv="id,name\n3,cid\n")
    assert load.load(on_bad_file="skip")["files"] == 1
    assert [row["id"] for row in load.rows()] == [1, 3]
    assert len(load.rows("loads__rejected")) == 2


def test_a_skipped_bad_file_does_not_block_other_files(load: FolderLoads) -> None:
    load.arrive(a__csv="id,name\n1,ann\n")
    load.load()
    load.arrive(bad__csv="id,name\nx,dan\n", b__csv="id,name\n2,ben\n")
    code, text = load.refused()
    assert (code, "unstuck stream skip DATASET FILE" in text) == ("BAD_FILE", True)
    skip_file(load.warehouse, "loads", "bad.csv", by="anna")
    assert load.load()["files"] == 1
    assert load.rows() == [{"id": 1, "name": "ann"}, {"id": 2, "name": "ben"}]


@pytest.mark.variant
def test_rejected_rows_and_quarantined_files_form_one_dataset(load: FolderLoads) -> None:
    rules = {
        "quality": {"rules": {"positive": "id > 0"}, "max_rejected_ratio": 1},
        "partition_by": ["name"],
    }
    load.arrive(a__csv="id,name\n1,ann\n-1,ann\n")
    load.load(rules, on_bad_file="skip")
    load.arrive(b__csv="id,name\n2,ben\n-2,ben\n", bad__csv="id\n3\n")
    load.load(rules, on_bad_file="skip")
    assert load.rows() == [{"id": 1, "name": "ann"}, {"id": 2, "name": "ben"}]
    found = [
        (row["_rejected_by"], row["id"], row.get("_file")) for row in load.rows("loads__rejected")
    ]
    assert found == [
        (["positive"], -1, None),
        (["positive"], -2, None),
        (["on_bad_file"], None, f"{load.home}/in/bad.csv"),
    ]
    load.load(rules, on_bad_file="skip")
    assert load.warehouse.head() == 2, "nothing was new"


@pytest.mark.variant
def test_too_many_rejected_rows_halt_a_schedule_before_the_publish(
    load: FolderLoads,
) -> None:
    budget = {
        "quality": {"rules": {"positive": "id > 0"}, "max_rejected_ratio": 0.3, "over": "3 runs"}
    }
    load.arrive(a__csv="id,name\n1,ann\n2,ben\n")
    load.load(budget, on_bad_file="skip")
    load.arrive(b__csv="id,name\n3,cid\n-4,dan\n")
    load.load(budget, on_bad_file="skip")  # half of it, and one of four in both runs
    load.arrive(c__csv="id,name\n5,eva\n", bad__csv="id,name\nx,fay\n")
    schedules, spec = load.client.schedules, load.spec(budget, on_bad_file="skip")
    name = schedules.set(spec | {"schedule": {"every": "2s"}}).target
    wait_until(lambda: schedules.show(name).status is ScheduleStatus.HALTED, 60, "the halt")
    error = schedules.show(name).last_error
    assert error is not None
    assert error.code == "TOO_MANY_REJECTED_ROWS"
    assert (
        "2 of 6 rows of loads were rejected in 3 runs, this one included (33.33%; "
        "max_rejected_ratio"
    ) in error.text
    assert (load.warehouse.head(), len(load.rows())) == (2, 3)

    load.arrive(bad__csv="id,name\n6,fay\n")
    schedules.resume(name)
    wait_until(lambda: schedules.show(name).last_success, 60, "the run after the file was mended")
    assert [row["id"] for row in load.rows()] == [1, 2, 3, 5, 6]


def test_a_run_overtaken_by_another_publisher_is_retried_and_publishes_each_row_once(
    load: FolderLoads,
) -> None:
    """A person skips a file while a run of the schedule goes on.

    A job of the same load moves the position as well.
    """
    if load.spark:
        pytest.skip("the same rule")
    load.arrive(a__csv="id,name\n1,ann\n")
    load.load()
    load.arrive(b__csv="id,name\n2,ben\n", c__csv="id,name\n")
    gate, seen = load.home / "gate", load.home / "seen"
    gate.touch()
    seen.touch()
    schedules, spec = load.client.schedules, load.spec()
    spec["schedule"] = {"every": "2s", "retry": {"backoff": "1s"}}
    name = spec["name"]
    spec["groups"][0]["steps"] = [
        {"python": "file_steps:held", "params": {"gate": str(gate), "seen": str(seen)}}
    ]
    schedules.set(spec)
    (run,) = wait_until(lambda: schedules.runs(name), 60, "the run")
    wait_until(lambda: "written" in seen.read_text(), 60, "what the attempt has read")
    load.client.skip_file("loads", "c.csv")
    gate.unlink()
    done = wait_until(lambda: schedules.show(name).last_success, 60, "the next try")
    assert done.job != run.id
    assert [event["code"] for event in schedules.events(name) if event["kind"] == "RUN_FAILED"] == [
        "STREAM_MOVED"
    ]
    assert [row["id"] for row in load.rows()] == [1, 2]


@pytest.mark.variant
def test_a_full_folder_is_loaded_by_consecutive_runs_of_bounded_size(load: FolderLoads) -> None:
    for n in range(5):
        load.files({f"{9 - n}.csv": f"id,name\n{n},ann\n"})
        os.utime(load.home / "in" / f"{9 - n}.csv", (n, n))
    schedules, spec = load.client.schedules, load.spec(max_files_per_run=2)
    spec["schedule"] = {"every": "1d", "only_if": "arrived"}
    name = schedules.set(spec).target
    schedules.run(name)
    wait_until(
        lambda: load.warehouse.head() == 3, 60, "three versions, of which a person asked for one"
    )
    assert [row["id"] for row in load.rows()] == [*range(5)]
    versions = [
        sources_of(load.warehouse, "loads", entry) for entry in load.warehouse.history("loads", 3)
    ]
    assert [[Path(one.source).name for one in read] for read in versions] == [
        ["5.csv"],
        ["6.csv", "7.csv"],
        ["8.csv", "9.csv"],
    ]
    assert schedules.show(name).last_success


@pytest.mark.variant
def test_fork_members_load_each_file_once_and_the_next_job_continues(
    load: FolderLoads,
) -> None:
    def forked(**more: Any) -> JobInfo:
        spec = load.spec(**more)
        spec["groups"][0]["for_each"] = {"part": [*range(3)]}
        return load.client.wait(load.client.submit(spec).id)

    for n in range(12):
        load.files({f"{n}.csv": f"id,name\n{n},ann\n"})
    load.files({"bad.csv": "id,name\nx,ann\n"})
    view = forked(on_bad_file="skip")
    assert view.status is Status.FINISHED, view
    results = [one.results for one in view.groups[0].members]
    counts = [one["events"] for one in results if one is not None]
    assert sum(one["files"] for one in counts) == 12
    assert max(one["files"] for one in counts) < 12
    assert len(load.rows("loads__rejected")) == 1
    load.files({f"{n}.csv": f"id,name\n{n},ann\n" for n in (12, 13)})
    assert forked(on_bad_file="skip").status is Status.FINISHED
    assert forked(on_bad_file="skip").version == 0, "nothing is new for any member"
    assert load.load(on_bad_file="skip")["files"] == 0, "nor for a group without a fork"
    assert sorted(row["id"] for row in load.rows()) == [*range(14)]
    (entry,) = load.warehouse.history("loads", 1)
    assert sorted(Path(one.source).name for one in sources_of(load.warehouse, "loads", entry)) == [
        "12.csv",
        "13.csv",
    ]


def test_columns_are_matched_by_name_and_the_file_path_is_a_column(load: FolderLoads) -> None:
    load.files({"a.json": '{"name": "ann", "id": 1}\n', "b.json": '{"id": 2, "name": "ben"}\n'})
    load.load(format="json", options={}, schema="id BIGINT, name STRING, _file STRING")
    assert load.rows() == [
        {"id": 1, "name": "ann", "_file": f"{load.home}/in/a.json"},
        {"id": 2, "name": "ben", "_file": f"{load.home}/in/b.json"},
    ]


def test_a_parquet_file_with_a_renamed_column_is_refused(load: FolderLoads) -> None:
    for name, table in {
        "a": {"name": ["cid"], "id": [3]},
        "b": {"ident": [4], "name": ["dan"]},
    }.items():
        pq.write_table(pa.table(table), sink := pa.BufferOutputStream())
        load.files({f"{name}.parquet": sink.getvalue().to_pybytes()})
    code, text = load.refused(format="parquet", options={})
    assert (code, "b.parquet: the file has the columns ident, name" in text) == ("BAD_FILE", True)
    assert load.load(format="parquet", options={}, on_bad_file="skip")["put_aside"] == 1
    assert load.rows() == [{"id": 3, "name": "cid"}]
