"""Streams: files arrive, job after job reads what is new, and each row is published once, whoever
dies in between.

A real worker with Spark, a real coordinator and signals; all tests share one fleet, each has a
warehouse of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.support.servers import RedisServer, wait_until
from tests.support.streams.kafka import mock_broker
from tests.support.streams.stream_fleet import StreamFleet, published_ids, stream_fleet
from unstuck import Client, Settings, Status, published_files
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.coordinator.publishing.vacuum import vacuum
from unstuck.read_model.job import JobInfo
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.staging import Staging
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.compact import compact_dataset
from unstuck.tasks.warehouse.log import Warehouse

SQL = {"sql": "SELECT id, at FROM events WHERE id > 0", "output": "loads"}
STEPS = """
from pathlib import Path
from pyspark.sql.functions import udf

def never(spark, ctx, started):
    def wait(id):
        import time
        Path(started).touch()
        while True:
            time.sleep(0.1)
    return ctx.input("events").withColumn("id", udf(wait, "bigint")("id"))

def into(spark, ctx, output):
    ctx.output(output).write(ctx.input("events"))

def own(spark, ctx):
    return spark.readStream.format("rate").load()

def distinct(spark, ctx):
    return ctx.input("events").dropDuplicates(["id"])

def gate(spark, ctx, path):
    if not Path(path).exists():
        raise RuntimeError("the gate is closed")
"""


@dataclass
class Stream:
    """A landing folder, and a warehouse that jobs load it into."""

    home: Path
    fleet: StreamFleet
    client: Client

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(str(self.home / "warehouse"))

    def arrive(self, *ids: int) -> None:
        """A file arrives with a row for each of ``ids``."""
        landing = self.home / "landing"
        landing.mkdir(exist_ok=True)
        rows = "".join(json.dumps({"id": n, "at": f"at {n}"}) + "\n" for n in ids)
        (written := landing / f".{ids}").write_text(rows)
        written.rename(landing / f"{'-'.join(map(str, ids))}.json")

    def submit(
        self,
        *steps: dict[str, Any],
        generation: int = 1,
        state: bool = False,
        changed: str = "fail",
        gate: Path | None = None,
        retry: dict[str, Any] | None = None,
        events: dict[str, Any] | None = None,
        **output: Any,
    ) -> str:
        """A job that loads what has arrived; with ``gate``, it fails unless there is such a
        file.
        """
        stream = {
            "stream": str(self.home / "landing"),
            "format": "json",
            "schema": "id BIGINT, at STRING",
            "generation": generation,
            "changed": changed,
            "state": state,
            **(events or {}),
        }
        load = {"name": "load", "inputs": {"events": stream}, "steps": steps or [SQL]}
        check = {
            "name": "check",
            "steps": [{"python": "stream_steps:gate", "params": {"path": str(gate)}}],
        }
        return self.client.submit(
            {
                "name": "load",
                "defaults": {"retry": retry or {"max": 0}},
                "on_failure": "finish_others",
                "groups": [load] if gate is None else [load, check],
                "outputs": {"loads": {"mode": "append", **output}},
            }
        ).id

    def ended(self, job: str) -> JobInfo:
        return self.client.wait(job)

    def load(self, *steps: dict[str, Any], **rest: Any) -> str:
        """Load what has arrived. Returns the job."""
        view = self.ended(self.submit(*steps, **rest))
        assert view.status is Status.FINISHED, view
        return view.id

    def failed(self, *steps: dict[str, Any], versions: int = 0, **rest: Any) -> tuple[str, str]:
        """Code and text of the failure of a job that cannot load."""
        view = self.ended(self.submit(*steps, **rest))
        assert view.status is Status.FAILED, view
        assert self.warehouse.head() == versions, "nothing was published"
        failure = view.groups[0].members[0].reason
        assert failure is not None
        return failure.code, failure.text

    def ids(self, dataset: str = "loads") -> list[int]:
        """Those of all published rows."""
        return published_ids(self.warehouse, dataset)

    def paths(self, dataset: str = "loads") -> list[str]:
        return published_files(self.warehouse, dataset)

    def rows_of(self, job: str) -> int:
        """How many rows the entry of a job has added."""
        (entry,) = [one for one in self.warehouse.history("loads", 100) if one.job == job]
        return entry.datasets["loads"].rows


@pytest.fixture(scope="module")
def running(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StreamFleet]:
    environ = {
        "UNSTUCK_CANCEL_GRACE": "60s",
        "UNSTUCK_SPARK_MASTER": "local[1]",
        "UNSTUCK_SPARK_CONF": json.dumps(
            {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
        ),
    }
    home = tmp_path_factory.mktemp("fleet")
    with stream_fleet(redis_server, home, {"stream_steps": STEPS}, "spark", **environ) as running:
        yield running


@pytest.fixture
def stream(running: StreamFleet, tmp_path: Path) -> Iterator[Stream]:
    with connect(running.server.url) as store:
        settings = Settings(redis_url=running.server.url, warehouse=str(tmp_path / "warehouse"))
        yield Stream(tmp_path, running, Client(settings, redis_client=store))


@pytest.mark.parametrize("state", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_each_job_publishes_the_rows_of_files_unpublished_by_earlier_jobs(
    stream: Stream, state: bool
) -> None:
    stream.arrive(1, -1)
    stream.arrive(2)
    stream.arrive(3, 4)
    assert stream.rows_of(stream.load(state=state)) == 4
    assert stream.ids() == [1, 2, 3, 4]
    stream.arrive(5)
    stream.arrive(6)
    assert stream.rows_of(stream.load(state=state)) == 2
    assert stream.ids() == [1, 2, 3, 4, 5, 6]
    stream.load(state=state)
    assert stream.ids() == [1, 2, 3, 4, 5, 6]


@pytest.mark.variant
@pytest.mark.parametrize("state", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_a_run_without_new_files_publishes_no_version_and_says_what_it_checked(
    stream: Stream, state: bool
) -> None:
    stream.arrive(1)
    stream.arrive(2)
    first = stream.ended(stream.load(state=state))
    read = first.groups[0].members[0].results["events"]
    assert read == {"looked": 2, "files": 2, "bytes": 48}
    (stream.home / "landing" / "3.json.part").write_text("{")
    again = stream.ended(stream.load(state=state))
    nothing = (
        f"nothing new, looked at 2 files in {stream.home}/landing; ignored by their names: "
        "1 "
        "(3.json.part)"
    )
    assert again.reason is not None
    assert again.reason.text == f"all groups are done, and there is no new version: {nothing}"
    assert again.groups[0].members[0].reason == Reason("ARRIVED", nothing)
    assert again.groups[0].members[0].results["events"] == {
        "looked": 2,
        "files": 0,
        "bytes": 0,
        "ignored": 1,
    }
    assert stream.warehouse.head() == 1
    stream.arrive(4)
    assert stream.rows_of(stream.load(state=state)) == 1


@pytest.mark.variant
def test_a_query_with_state_remembers_its_rows_despite_bounds_skips_and_bad_files(
    stream: Stream,
) -> None:
    """Each id is published once, by whichever file and job it came."""
    distinct = {"python": "stream_steps:distinct", "output": "loads"}

    def load(**events: Any) -> None:
        stream.load(distinct, state=True, events=events)

    landing = stream.home / "landing"
    stream.arrive(1, 2)
    load()
    stream.arrive(2, 3)
    stream.arrive(3, 4)
    (landing / "bad.json").write_text('{"id": 9, "at": "\\u00fc", "id": 8}\n')
    code, text = stream.failed(distinct, state=True, versions=1)
    assert code == "BAD_FILE"
    assert f"{landing}/bad.json, line 1: " in text
    assert skip_file(stream.warehouse, "loads", "bad.json", by="ann").new
    for _ in range(2):
        load(max_files_per_run=1)
    assert stream.ids() == [1, 2, 3, 4]
    (landing / "worse.json").write_text("{")
    stream.arrive(4, 5)
    load(on_bad_file="skip")
    assert stream.ids() == [1, 2, 3, 4, 5]
    errors = [
        row["_error"]
        for path in stream.paths("loads__rejected")
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(errors) == 1
    (landing / "1-2.json").write_text('{"id": 1, "at": "now"}\n{"id": 6, "at": "now"}\n')
    load(changed="again")
    assert stream.ids() == [1, 2, 3, 4, 5, 6]


@pytest.mark.variant
def test_a_missing_folder_is_an_error_with_its_path(stream: Stream) -> None:
    code, text = stream.failed()
    assert code == "SOURCE_UNAVAILABLE"
    assert f"the stream cannot read {stream.home}/landing: No such file or directory" in text


@pytest.mark.variant
def test_a_changed_file_is_reported_and_nothing_is_read(stream: Stream) -> None:
    stream.arrive(1)
    stream.load()
    (stream.home / "landing" / "1.json").write_text('{"id": 10, "at": "now"}\n')
    stream.arrive(2)
    reason = stream.ended(stream.submit()).groups[0].members[0].reason
    assert reason is not None
    assert (reason.code, f"{stream.home}/landing/1.json (read with 24 bytes" in reason.text) == (
        "FILE_CHANGED",
        True,
    )
    assert stream.ids() == [1]
    stream.load(changed="again")
    assert stream.ids() == [1, 2, 10]


@pytest.mark.variant
def test_a_first_job_without_files_publishes_columns_and_no_rows(stream: Stream) -> None:
    (stream.home / "landing").mkdir()
    assert stream.rows_of(stream.load()) == 0
    (path,) = stream.paths()
    assert pq.read_schema(path).names == ["id", "at"]
    stream.arrive(1)
    stream.load({"python": "stream_steps:into", "params": {"output": "loads"}})
    assert stream.ids() == [1]


@pytest.mark.parametrize(
    ("state", "point"),
    [
        pytest.param(False, Point.AFTER_OUTPUT, marks=pytest.mark.long),
        (False, Point.AFTER_MARKER),
        pytest.param(True, Point.AFTER_OUTPUT, marks=pytest.mark.variant),
        pytest.param(True, Point.AFTER_MARKER, marks=pytest.mark.long),
    ],
)
def test_a_runner_that_dies_around_its_marker_or_commit_publishes_each_row_once(
    stream: Stream, state: bool, point: Point
) -> None:
    """``after-output``: with state, Spark has committed all batches; no marker stands.

    A death before that commit is part of the test of generations.
    """
    stream.arrive(1)
    stream.load(state=state)
    stream.arrive(2)
    stream.arrive(3, 4)
    with stream.fleet.death(point):
        assert stream.rows_of(stream.load(state=state)) == 3
    assert stream.ids() == [1, 2, 3, 4]
    stream.arrive(5)
    assert stream.rows_of(stream.load(state=state)) == 1
    assert stream.ids() == [1, 2, 3, 4, 5]


@pytest.mark.variant
def test_another_generation_reads_everything_again_in_a_separate_first_batch(
    stream: Stream,
) -> None:
    stream.arrive(1)
    stream.arrive(2)
    stream.load()
    stream.arrive(3)
    with stream.fleet.death(Point.AFTER_BATCH):  # so that its first batch is replayed
        assert stream.rows_of(stream.load(generation=2, state=True)) == 3
    assert stream.ids() == [1, 1, 2, 2, 3]
    stream.arrive(4)
    assert stream.rows_of(stream.load(generation=2, state=True)) == 1


@pytest.mark.variant
def test_the_second_of_two_jobs_with_the_same_files_fails_and_names_the_first(
    stream: Stream,
) -> None:
    stream.arrive(1)
    stream.load()
    stream.arrive(2)
    stream.fleet.coordinators.kill()  # so that both are submitted before either publishes
    jobs = [stream.submit(), stream.submit()]
    stream.fleet.coordinators.tend(1)
    views = sorted(
        (stream.ended(job) for job in jobs), key=lambda view: view.status is Status.FAILED
    )
    assert [view.status for view in views] == [Status.FINISHED, Status.FAILED]
    reason = views[1].reason
    assert reason is not None
    assert reason.code == "STREAM_MOVED"
    assert f"job {views[0].id} has read on" in reason.text
    assert stream.ids() == [1, 2]
    stream.arrive(3)
    assert stream.ended(stream.client.retry(views[1].id).id).status is Status.FINISHED
    assert stream.ids() == [1, 2, 3]


@pytest.mark.variant
def test_a_failed_attempt_leaves_nothing_and_the_next_reads_everything_arrived(
    stream: Stream,
) -> None:
    stream.arrive(1)
    gate = stream.home / "open"
    check = {"python": "stream_steps:gate", "params": {"path": str(gate)}}
    job = stream.submit(SQL, check, retry={"max": 20, "backoff": "1s", "max_backoff": "1s"})

    def failed() -> bool:
        return any(
            member.failures for group in stream.client.show(job).groups for member in group.members
        )

    wait_until(failed, 120, "an attempt to fail")
    stream.arrive(2)
    gate.touch()
    assert stream.ended(job).status is Status.FINISHED
    assert stream.rows_of(job) == 2
    stream.arrive(3)
    stream.load()
    assert stream.ids() == [1, 2, 3]


@pytest.mark.variant
def test_a_retry_reuses_a_load_unless_another_job_has_continued_the_stream(
    stream: Stream,
) -> None:
    stream.arrive(1)
    gate = stream.home / "open"
    first = stream.ended(stream.submit(gate=gate))
    assert first.status is Status.FAILED
    stream.arrive(2)
    gate.touch()
    second = stream.ended(stream.client.retry(first.id).id)
    assert second.status is Status.FINISHED
    assert stream.ids() == [1]
    assert [first.id in path for path in stream.paths()] == [True]

    gate.unlink()
    third = stream.ended(stream.submit(gate=gate))
    assert third.status is Status.FAILED
    stream.load()
    stream.arrive(3)
    gate.touch()
    fourth = stream.ended(stream.client.retry(third.id).id)
    assert fourth.status is Status.FINISHED
    assert stream.rows_of(fourth.id) == 1
    assert stream.ids() == [1, 2, 3]


@pytest.mark.variant
def test_after_a_compaction_and_a_vacuum_the_next_job_reads_only_new_files(
    stream: Stream,
) -> None:
    for number in (1, 2, 3):
        stream.arrive(number)
        stream.load()
    warehouse = stream.warehouse
    with connect(stream.fleet.server.url) as store:
        staging = Staging(store, Keys("unstuck"))
        compact_dataset(
            warehouse, staging, "loads", target=1, retention=60.0, progress=lambda done, total: None
        )
    newest = max(entry.at for entry in warehouse.history("loads", 10))
    vacuum(warehouse, lambda path: False, keep=1, before=newest + 1)
    assert len([*stream.home.rglob("*.position")]) == 1
    assert len(stream.paths()) == 1
    stream.arrive(4)
    assert stream.rows_of(stream.load()) == 1
    assert stream.ids() == [1, 2, 3, 4]


@pytest.mark.variant
def test_appends_and_replaces_of_other_jobs_do_not_move_the_stream(
    stream: Stream,
) -> None:
    stream.arrive(1)
    stream.load(shared_with=["other"])
    other = {"name": "other", "steps": [{"sql": "SELECT 10L AS id, 'x' AS at", "output": "loads"}]}
    for mode in ("append", "replace"):
        job = stream.client.submit(
            {"name": "other", "groups": [other], "outputs": {"loads": {"mode": mode}}}
        ).id
        assert stream.ended(job).status is Status.FINISHED
    stream.arrive(2)
    stream.load()
    assert stream.ids() == [2, 10]


@pytest.mark.variant
def test_rules_expectations_and_partitions_apply_to_everything_that_arrived(stream: Stream) -> None:
    rules = {"rules": {"small": "id < 10"}, "max_rejected_ratio": 0.5}
    output = {"quality": rules, "partition_by": ["at"], "expect": {"unique": ["id"]}}
    stream.arrive(1, 2)
    stream.arrive(11)  # a batch of its own, all of which is rejected
    stream.load(**output)
    assert stream.ids() == [1, 2]
    assert stream.ids("loads__rejected") == [11]
    parts = {one.partition["at"]: one.rows for one in stream.warehouse.dataset("loads").files}
    assert parts == {"at 1": 1, "at 2": 1}
    stream.arrive(3)
    stream.load(**output)
    assert stream.ids() == [1, 2, 3]
    stream.arrive(4)
    stream.arrive(4, 5)
    assert stream.ended(stream.submit(**output)).status is Status.FAILED
    assert stream.ids() == [1, 2, 3]


@pytest.mark.variant
def test_a_cancel_during_a_batch_ends_the_job_and_publishes_nothing(
    stream: Stream,
) -> None:
    stream.arrive(1)
    started = stream.home / "started"
    step = {"python": "stream_steps:never", "params": {"started": str(started)}, "output": "loads"}
    job = stream.submit(step)
    wait_until(started.exists, 120, "the batch to begin")
    stream.client.cancel(job)
    assert stream.ended(job).status is Status.CANCELED
    assert "loads" not in stream.warehouse.state()
    stream.load()
    assert stream.ids() == [1]


@pytest.mark.parametrize(
    ("step", "output", "code", "text"),
    [
        (
            {"python": "stream_steps:into", "params": {"output": "other"}},
            {},
            "OUTPUT_INVALID",
            "{other: {mode: append",
        ),
        (
            {"python": "stream_steps:own", "output": "loads"},
            {"state": True},
            "OUTPUT_INVALID",
            "name it in inputs:",
        ),
        (
            {"python": "stream_steps:into", "params": {"output": "other"}},
            {"state": True},
            "OUTPUT_INVALID",
            "{other: {mode: append",
        ),
        (
            {"sql": "SELECT count(*) AS n FROM events", "output": "loads"},
            {"state": True},
            "SQL_INVALID",
            "watermark",
        ),
        (
            {"sql": "SELECT raise_error('odd row') AS n FROM events", "output": "loads"},
            {},
            "STEP_FAILED",
            "odd row",
        ),
        (
            {"sql": "SELECT raise_error('odd row') AS n FROM events", "output": "loads"},
            {"state": True},
            "STEP_FAILED",
            "odd row",
        ),
        (
            SQL,
            {"quality": {"rules": {"odd": "id + 1"}}},
            "RULE_INVALID",
            "the rule odd (id + 1) cannot be used",
        ),
    ],
)
def test_failures_in_a_stream_are_reported_as_without_a_stream(
    stream: Stream, step: dict[str, Any], output: dict[str, Any], code: str, text: str
) -> None:
    if text == "odd row" and pyspark.__version__.startswith("3."):
        pytest.skip(
            "PySpark 3.5 hands on an error of a task with the whole of its Java, whose middle is "
            "cut"
        )
    stream.arrive(1)
    said = stream.failed(step, **output)
    assert said[0] == code
    assert text in said[1]
    assert "STREAM_FAILED" not in said[1]


def test_a_stream_opened_by_a_step_cannot_be_an_output_of_a_group_without_a_stream(
    stream: Stream,
) -> None:
    group = {"name": "load", "steps": [{"python": "stream_steps:own", "output": "loads"}]}
    job = stream.client.submit(
        {"name": "x", "groups": [group], "outputs": {"loads": {"mode": "append"}}}
    ).id
    reason = stream.ended(job).groups[0].members[0].reason
    assert reason is not None
    assert (reason.code, "name it in inputs:" in reason.text) == ("OUTPUT_INVALID", True)


@pytest.mark.variant
def test_each_job_publishes_unpublished_messages_through_spark(
    stream: Stream,
) -> None:
    with mock_broker() as broker:
        events = {
            "stream": broker.stream("events"),
            "format": "json",
            "schema": "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>",
            "metadata": ["key", "headers", "partition"],
        }
        sql = (
            "SELECT id, at, tags[0] AS tags, key, headers[0].value AS h, partition FROM events "
            "WHERE id > 0"
        )
        load = {
            "name": "load",
            "inputs": {"events": events},
            "steps": [{"sql": sql, "output": "loads"}],
        }
        spec = {"name": "load", "groups": [load], "outputs": {"loads": {"mode": "append"}}}

        def loaded() -> list[int]:
            assert stream.ended(stream.client.submit(spec).id).status is Status.FINISHED
            return stream.ids()

        rows = [
            {"id": n, "at": "2024-02-29T01:00:00+01:00", "tags": ["a", "b"]} for n in (-1, 1, 2)
        ]
        broker.produce("events", *rows, key=b"k", headers=[("h", b"v")], partition=3)
        assert loaded() == [1, 2]
        broker.produce("events", {"id": 3, "at": None, "tags": None}, partition=1)
        assert loaded() == [1, 2, 3]
        version = stream.warehouse.head()
        assert (loaded(), stream.warehouse.head()) == ([1, 2, 3], version)
        first, last = (
            row
            for path in stream.paths()
            for row in pq.read_table(path).to_pylist()
            if row["id"] != 2
        )
        assert first.pop("at").isoformat() == "2024-02-29T00:00:00+00:00"
        assert first == {"id": 1, "tags": "a", "key": b"k", "h": b"v", "partition": 3}
        assert last == {"id": 3, "at": None, "tags": None, "key": None, "h": None, "partition": 1}
