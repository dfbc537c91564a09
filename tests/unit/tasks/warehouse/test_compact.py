"""Compaction: the rows stay, the files become few, and what other jobs do meanwhile stands."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.errors import WarehouseMismatch
from unstuck.tasks.frames.output import stage
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.staging import Staging
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse import compact as module
from unstuck.tasks.warehouse.compact import Compacted, compact, compact_dataset
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import Marker, NamedPartitions, write_marker
from unstuck.tasks.warehouse.published import published_files

APPEND = OutputSpec(mode="append")
BY_DAY = OutputSpec(
    mode="partition_overwrite", partition_by=("day",), partitions={"day": (":day",)}
)
APPEND_BY_DAY = OutputSpec(mode="append", partition_by=("day",))
TARGET = 1_000_000


class FlightLoads:
    """A dataset ``flights`` of a few rows a job."""

    def __init__(self, root: Path | str) -> None:
        self.root = str(root)
        self.warehouse = Warehouse(self.root)
        self.known = self.warehouse.ensure_id()

    def load(
        self,
        job: str,
        output: OutputSpec,
        named: NamedPartitions | None = None,
        **columns: list[Any],
    ) -> None:
        files, staging = Files(self.root), f"_staging/{job}/load/1-nonce-claimant"
        staged = stage(files, f"{staging}/flights", pa.table(columns), output.partition_by)
        if named is None and output.partitions:
            named = {"day": columns["day"]}
        staged = staged if named is None else staged.of_load(named)
        write_marker(
            files, staging, Marker(f"{job}/load", "same", {"flights": staged}, {}, {}, 1.0)
        )
        self.publish(job, job, output)

    def publish(self, made: str, job: str, output: OutputSpec) -> None:
        request = PublishRequest(
            *(self.root, self.known, job, job, "flights", 0, 1000.0),
            sources={"load": (f"_staging/{made}/load/1-nonce-claimant",)},
            published_by={"load"},
            outputs={"flights": output},
        )
        assert publish(request).failed is None

    def compact(self, **more: Any) -> Compacted:
        more = {
            "needed": lambda path: False,
            "target": TARGET,
            "at": 2000.0,
            "publish_id": "compact-1",
            **more,
        }
        return compact(self.warehouse, "flights", **more)

    def rows(self, version: int | None = None) -> list[tuple[Any, ...]]:
        paths = published_files(self.root, "flights", version)
        found = duckdb.read_parquet(paths).fetchall()
        assert sorted(polars.read_parquet(paths).rows()) == sorted(found)
        return sorted(found)


@pytest.fixture
def loads(tmp_path: Path) -> FlightLoads:
    return FlightLoads(tmp_path / "warehouse")


def test_many_small_files_become_one_with_the_same_rows(loads: FlightLoads) -> None:
    for n in range(5):
        loads.load(f"job{n}", APPEND, day=["2013-01-01"], n=[n])
    before, schema = loads.rows(), loads.warehouse.dataset("flights").schema

    done = loads.compact()

    assert (done.version, done.before, done.after, done.kept) == (6, 5, 1, 0)
    assert loads.rows() == before
    assert loads.rows(5) == before, "the version before has its own files"
    assert loads.warehouse.dataset("flights").schema == schema
    assert loads.compact(publish_id="compact-2").version == 0, "nothing is left to do"
    loads.load("job5", APPEND, day=["2013-01-02"], n=[5])
    assert len(loads.rows()) == 6


DIES_BEFORE_ITS_ENTRY = """
import os, signal, sys
from unstuck.tasks.warehouse.compact import compact
from unstuck.tasks.warehouse.log import Warehouse
Warehouse.append = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
compact(Warehouse(sys.argv[1]), "flights", "compact-died", lambda path: False, target=1_000_000, at=2000.0)
"""


@pytest.mark.parametrize("store", ["local disk", "S3"])
def test_a_killed_compaction_changes_nothing_and_the_next_succeeds(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    loads = FlightLoads(
        f"{request.getfixturevalue('bucket')}/w" if store == "S3" else tmp_path / "warehouse"
    )
    files = loads.warehouse.storage

    def rows() -> list[int]:
        tables = [
            pq.read_table(io.BytesIO(files.read(file.path)))
            for file in loads.warehouse.dataset("flights").files
        ]
        return [n for table in tables for n in table["n"].to_pylist()]

    for n in range(4):
        loads.load(f"job{n}", APPEND, n=[n])
    before = loads.warehouse.dataset("flights")

    died = subprocess.run([sys.executable, "-c", DIES_BEFORE_ITS_ENTRY, loads.root], check=False)

    assert died.returncode == -signal.SIGKILL
    assert files.names("_staging/compact-died/flights"), "it had written its files"
    assert (loads.warehouse.head(), loads.warehouse.dataset("flights")) == (4, before)
    assert (loads.compact().after, rows()) == (1, [0, 1, 2, 3])


def test_compacted_partitions_stay_separate_and_replaceable(loads: FlightLoads) -> None:
    for n in range(3):
        output = OutputSpec(mode="append", partition_by=("day",))
        loads.load(f"job{n}", output, day=["2013-01-01", "2013-01-02"], n=[n, n + 10])

    assert loads.compact().after == 2
    loads.load("again", BY_DAY, day=["2013-01-02"], n=[99])

    assert loads.rows() == [
        ("2013-01-01", 0),
        ("2013-01-01", 1),
        ("2013-01-01", 2),
        ("2013-01-02", 99),
    ]


def test_late_rows_of_one_load_stay_separate_and_replaceable(loads: FlightLoads) -> None:
    for n, day in enumerate(("2013-01-02", "2013-01-03"), 1):
        loads.load(f"job{n}", BY_DAY, {"day": [day]}, day=["2013-01-01"], n=[n])
    loads.load("more", APPEND_BY_DAY, day=["2013-01-01"], n=[3])
    loads.load("again", APPEND_BY_DAY, day=["2013-01-01"], n=[4])

    assert loads.compact().after == 3
    loads.load("reload", BY_DAY, {"day": ["2013-01-02"]}, day=["2013-01-02"], n=[5])

    assert loads.rows() == [
        ("2013-01-01", 2),
        ("2013-01-01", 3),
        ("2013-01-01", 4),
        ("2013-01-02", 5),
    ]


def test_more_than_ten_new_files_of_a_compaction_have_distinct_names(loads: FlightLoads) -> None:
    for job in ("one", "two"):
        loads.load(
            job, APPEND_BY_DAY, day=[f"2013-01-{n:02d}" for n in range(1, 26)], id=list(range(25))
        )
    before = loads.rows()
    assert loads.compact().after == 25
    assert loads.rows() == before


def test_large_files_and_files_with_other_types_are_not_compacted(loads: FlightLoads) -> None:
    loads.load("one", APPEND, n=[1])
    loads.load("large", APPEND, n=list(range(100_000)))
    loads.load("two", APPEND, n=[2])
    large = loads.warehouse.dataset("flights").files[1]

    assert loads.compact(target=large.bytes).after == 2

    assert large in loads.warehouse.dataset("flights").files
    assert sum(row[0] for row in loads.rows()) == 3 + sum(range(100_000))


def test_new_files_have_about_the_target_size(loads: FlightLoads) -> None:
    for n in range(10):
        loads.load(f"job{n}", APPEND, n=[n])
    size = max(file.bytes for file in loads.warehouse.dataset("flights").files)

    assert loads.compact(target=size * 5).after == 2


def test_a_file_that_a_retry_may_append_again_keeps_its_name(loads: FlightLoads) -> None:
    for n in range(3):
        loads.load(f"job{n}", APPEND, n=[n])

    done = loads.compact(needed=lambda path: "/job1/" in path)
    loads.publish("job1", "retry-of-job1", APPEND)

    assert (done.after, done.kept) == (2, 1)
    assert loads.rows() == [(0,), (1,), (2,)], "not appended twice"


def overtaken(loads: FlightLoads, meanwhile: Callable[[], None]) -> Compacted:
    """A compaction, between whose reading and writing something else is done."""

    def late(*args: Any) -> Any:
        yield from [*module_rewrite(*args)]
        meanwhile()

    module_rewrite = module.rewrite
    with patch.object(module, "rewrite", late):
        return loads.compact()


def test_a_concurrent_append_of_another_job_is_kept(loads: FlightLoads) -> None:
    for n in range(3):
        loads.load(f"job{n}", APPEND, n=[n])

    assert overtaken(loads, lambda: loads.load("late", APPEND, n=[3])).version == 5

    assert loads.rows() == [(0,), (1,), (2,), (3,)]


def test_a_concurrent_replace_of_another_job_is_not_undone(loads: FlightLoads) -> None:
    for n in range(3):
        loads.load(f"job{n}", APPEND, n=[n])

    assert overtaken(loads, lambda: loads.load("late", OutputSpec(), n=[9])).version == 0

    assert loads.rows() == [(9,)]
    assert loads.warehouse.head() == 4


def test_compaction_preserves_types_of_all_kinds(loads: FlightLoads) -> None:
    from datetime import date, datetime
    from decimal import Decimal

    values: dict[str, list[Any]] = {
        "text": ["a", None],
        "day": [date(2013, 1, 1), None],
        "at": [datetime(2013, 1, 1, 12, 30, 15, 123456), None],
        "price": [Decimal("12.34"), None],
        "raw": [b"\x00\xff", None],
        "list": [[1, 2], None],
        "struct": [{"a": 1, "b": "x"}, None],
        "flag": [True, None],
    }
    for n in range(2):
        loads.load(f"job{n}", APPEND, **values)
    before = duckdb.read_parquet(published_files(loads.root, "flights")).fetchall()
    (first, *_) = loads.warehouse.dataset("flights").files
    columns = pq.read_schema(io.BytesIO(loads.warehouse.storage.read(first.path)))

    assert loads.compact().after == 1

    (made,) = loads.warehouse.dataset("flights").files
    written = pq.read_schema(io.BytesIO(loads.warehouse.storage.read(made.path)))
    assert written.equals(columns)
    assert duckdb.read_parquet(published_files(loads.root, "flights")).fetchall() == before
    assert json.loads(loads.warehouse.dataset("flights").schema)["fields"]


def test_a_dry_run_writes_nothing(loads: FlightLoads) -> None:
    for n in range(4):
        loads.load(f"job{n}", APPEND, n=[n])
    there = sorted(Path(loads.root).rglob("*"))

    assert loads.compact(dry_run=True).after == 1

    assert sorted(Path(loads.root).rglob("*")) == there


def test_nothing_is_written_to_the_place_of_a_disappeared_warehouse(
    tmp_path: Path, client: redis.Redis
) -> None:
    """As after an unmount: its folder stands there, empty."""
    loads = FlightLoads(tmp_path / "warehouse")
    for job in range(3):
        loads.load(f"job{job}", BY_DAY, id=[1, 2], day=[f"d{job}", f"e{job}"])
    for job in range(3, 5):
        loads.load(f"job{job}", APPEND_BY_DAY, id=[1, 2], day=["d0", "e0"])

    write = Files.write_durable

    def comes_too_late(files: Files, path: str, data: bytes) -> None:
        (tmp_path / "warehouse").rename(tmp_path / "away")
        (tmp_path / "warehouse").mkdir()
        write(files, path, data)

    staging = Staging(client, Keys())
    with (
        patch.object(Files, "write_durable", comes_too_late),
        pytest.raises(WarehouseMismatch, match="not mounted"),
    ):
        compact_dataset(
            *(loads.warehouse, staging, "flights"),
            target=1,
            retention=1.0,
            progress=lambda done, total: None,
        )
    assert not list((tmp_path / "warehouse").iterdir())
