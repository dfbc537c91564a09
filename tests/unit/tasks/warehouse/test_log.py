"""The warehouse log: versions that appear whole, never change, and read the same by any road."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unstuck.tasks.errors import DatasetNotFound, LogBroken, WarehouseMismatch, WarehouseNewer
from unstuck.tasks.warehouse.log import SNAPSHOT_EVERY, Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry, State, fold
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.tasks.warehouse.published import published_files

SCHEMA = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


def entry(n: int, publish_id: str, **datasets: Change) -> Entry:
    return Entry(n, n - 1, publish_id, "package", publish_id, "flights", 100.0 + n, {}, datasets)


def replaces(publish_id: str, *names: str) -> Callable[[int, State], Entry]:
    """Makes a package that replaces the datasets ``names`` by one file each."""

    def make(n: int, state: State) -> Entry:
        changes = {}
        for name in names:
            old = [file.path for file in state[name].files] if name in state else []
            changes[name] = Change(
                "replace", [DataFile(f"{publish_id}/{name}", n, 10)], old, n, SCHEMA
            )
        return entry(n, publish_id, **changes)

    return make


def publish(warehouse: Warehouse, publish_id: str, *names: str) -> int:
    return warehouse.append(publish_id, 0, replaces(publish_id, *names))[0].n


# The identity


def test_concurrent_initializers_create_the_warehouse_id_once(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {future.result() for future in [pool.submit(warehouse.ensure_id) for _ in range(16)]}
    assert len(ids) == 1
    warehouse.check_id(ids.pop())


def test_an_unshared_folder_is_refused_with_findings_and_the_usual_cause(
    tmp_path: Path, warehouse: Warehouse
) -> None:
    expected = warehouse.ensure_id()
    other = Warehouse(str(tmp_path / "other"))
    with pytest.raises(
        WarehouseMismatch, match=rf"no warehouse at .*other.*{expected}.*not shared"
    ):
        other.check_id(expected)
    seen = other.ensure_id()
    with pytest.raises(
        WarehouseMismatch, match=rf"warehouse {seen} at .*other.*{expected}.*not shared"
    ):
        other.check_id(expected)


# Versions


def test_an_empty_warehouse_is_version_zero_without_datasets(warehouse: Warehouse) -> None:
    assert warehouse.head() == 0
    assert warehouse.state() == {}
    assert sorted(warehouse.state()) == []
    with pytest.raises(DatasetNotFound, match=r"'flights'.*nothing yet"):
        warehouse.dataset("flights")


def test_a_version_never_changes_after_it_was_read(warehouse: Warehouse) -> None:
    publish(warehouse, "a", "flights", "carriers")
    first = warehouse.state(1)
    publish(warehouse, "b", "flights")

    assert warehouse.state(1) == first
    assert [f.path for f in warehouse.dataset("flights", 1).files] == ["a/flights"]
    assert [f.path for f in warehouse.dataset("flights").files] == ["b/flights"]
    assert [f.path for f in warehouse.dataset("carriers").files] == ["a/carriers"]
    state = warehouse.state()
    assert (state["flights"].changed, state["carriers"].changed) == (2, 1)
    assert (state["flights"].job, state["flights"].rows, state["flights"].at) == ("b", 2, 102.0)


def test_added_and_removed_files_are_folded_for_any_mode(
    warehouse: Warehouse,
) -> None:
    """Append and partition_overwrite of a later release can be read by this one."""
    publish(warehouse, "a", "flights")
    added = Change("append", [DataFile("more", 5, 10)], [], 5, SCHEMA)
    assert warehouse.create_entry(2, entry(2, "b", flights=added))
    swapped = Change("partition_overwrite", [DataFile("march", 7, 10)], ["more"], 7, SCHEMA)
    assert warehouse.create_entry(3, entry(3, "c", flights=swapped))

    assert [f.path for f in warehouse.dataset("flights", 2).files] == ["a/flights", "more"]
    assert [f.path for f in warehouse.dataset("flights", 3).files] == ["a/flights", "march"]
    assert warehouse.state()["flights"].rows == 8


def test_an_abort_changes_no_dataset(warehouse: Warehouse) -> None:
    publish(warehouse, "a", "flights")
    aborted = Entry(
        2, 1, "b", "abort", "b", "flights", 5.0, code="FORCE_STOPPED", reason="by alice"
    )
    assert warehouse.create_entry(2, aborted)
    assert warehouse.entry(2) == aborted
    assert warehouse.state(2) == warehouse.state(1)


def test_finding_the_head_takes_one_listing_for_any_length_of_the_log(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 8):
        publish(warehouse, f"job-{n}", "flights")
    listings: list[str] = []
    real = warehouse.storage.names
    monkeypatch.setattr(
        warehouse.storage, "names", lambda folder: listings.append(folder) or real(folder)
    )
    monkeypatch.setattr(warehouse.storage, "read", lambda path: pytest.fail(f"read {path}"))
    assert warehouse.head() == 7
    assert listings == ["_log"]


def test_a_missing_version_is_reported_with_the_newest(warehouse: Warehouse) -> None:
    publish(warehouse, "a", "flights")
    with pytest.raises(DatasetNotFound, match=r"no version 9; the newest one is 1"):
        warehouse.state(9)
    with pytest.raises(DatasetNotFound, match=r"no dataset 'weather'.*published there: flights"):
        warehouse.dataset("weather")


# Slots


def test_a_number_is_assigned_once(warehouse: Warehouse) -> None:
    assert warehouse.create_entry(1, entry(1, "a"))
    assert not warehouse.create_entry(1, entry(1, "b"))
    standing = warehouse.entry(1)
    assert standing is not None
    assert standing.publish_id == "a"


def test_a_gap_cannot_be_created(warehouse: Warehouse) -> None:
    with pytest.raises(LogBroken, match=": 1 is free"):
        warehouse.create_entry(2, entry(2, "a"))
    with pytest.raises(ValueError, match="cannot have the number"):
        warehouse.create_entry(1, entry(2, "a"))
    assert warehouse.head() == 0


def test_a_reader_reports_a_gap_in_the_log(warehouse: Warehouse, tmp_path: Path) -> None:
    for name in "abc":
        publish(warehouse, name, "flights")
    (tmp_path / "warehouse/_log/000000000002.json").unlink()
    with pytest.raises(LogBroken, match=r"entry 2 .* is missing"):
        warehouse.state()
    with pytest.raises(LogBroken, match=r"entry 2 .* is missing"):
        warehouse.find_publish("nobody", 0)
    assert sorted(warehouse.state(1)) == ["flights"], "what stands before the gap can be read"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b'{"n": 1, "parent": 0, "publish_id": "a"}',
        b"[" * 100_000 + b"]" * 100_000,
        b"\xff",
    ],
    ids=["empty", "half", "list", "no fields", "few fields", "nested too deep", "no UTF-8"],
)
def test_a_damaged_entry_is_an_error_and_not_an_empty_version(
    warehouse: Warehouse, tmp_path: Path, content: bytes
) -> None:
    publish(warehouse, "a", "flights")
    (tmp_path / "warehouse/_log/000000000001.json").write_bytes(content)
    with pytest.raises(LogBroken, match=r"000000000001\.json cannot be read") as raised:
        warehouse.state()
    assert "http" not in str(raised.value), "the pages of a library help no operator"


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "a/../b",
        "../a",
        "a/..",
        "_staging/./a",
        "./_staging/a",
        "_staging//a",
        "a/",
        "a\0",
        "a\nb",
    ],
)
@pytest.mark.parametrize("place", ["added", "removed", "tokens", "checkpoint"])
def test_a_log_path_has_one_valid_spelling_inside_the_warehouse(
    warehouse: Warehouse, tmp_path: Path, place: str, path: str
) -> None:
    publish(warehouse, "a", "flights")
    file = tmp_path / "warehouse/_log/000000000001.json"
    data = json.loads(file.read_text())
    change = data["datasets"]["flights"]
    if place == "checkpoint":
        point = {
            "path": "_staging/a/1",
            "bytes": 1,
            "stream": "/in",
            "generation": 1,
            "after": "_staging/a/0",
        }
        change["checkpoint"] = {**point, "path": path, "after": path}
    elif place == "tokens":
        data["tokens"] = [path]
    else:
        change[place] = [path] if place == "removed" else [{"path": path, "rows": 1, "bytes": 1}]
    file.write_text(json.dumps(data))
    with pytest.raises(LogBroken, match=r"000000000001\.json cannot be read"):
        warehouse.state()


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1, 1e300])
def test_an_impossible_time_in_the_log_is_an_error(
    warehouse: Warehouse, tmp_path: Path, at: float
) -> None:
    publish(warehouse, "a", "flights")
    file = tmp_path / "warehouse/_log/000000000001.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "at": at}))
    with pytest.raises(LogBroken):
        warehouse.state()


def test_the_history_of_a_dataset_has_the_requested_number_of_entries(
    warehouse: Warehouse,
) -> None:
    for n in range(25):
        publish(warehouse, f"p{n}", "flights")
    assert [one.n for one in warehouse.history("flights", 24)] == list(range(25, 1, -1))
    assert [one.n for one in warehouse.history("flights", 3, newest=9)] == [9, 8, 7]
    assert [one.n for one in warehouse.history("flights", 24, newest=9, looks=2)] == [9, 8]


def test_a_manually_edited_snapshot_is_ignored(warehouse: Warehouse, tmp_path: Path) -> None:
    for n in range(SNAPSHOT_EVERY):
        publish(warehouse, f"p{n}", "flights")
    before = warehouse.state()
    (file,) = (tmp_path / "warehouse/_log").glob("*.snapshot.json")
    for text in ("[" * 100_000, json.dumps({**json.loads(file.read_text()), "datasets": {}})):
        file.write_text(text)
        assert warehouse.state() == before


def test_an_entry_of_a_newer_release_is_refused_with_a_remedy(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    publish(warehouse, "a", "flights")
    path = tmp_path / "warehouse/_log/000000000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2, "shape": "unknown"}))
    with pytest.raises(WarehouseNewer, match="version 2, this release reads up to 1; upgrade"):
        warehouse.state()


def test_a_field_added_by_a_newer_release_is_ignored(warehouse: Warehouse, tmp_path: Path) -> None:
    publish(warehouse, "a", "flights")
    before, path = warehouse.state(), tmp_path / "warehouse/_log/000000000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mood": "good"}))
    assert warehouse.state() == before


def test_an_own_publish_is_found_only_above_the_base(warehouse: Warehouse) -> None:
    for name in "abc":
        publish(warehouse, name, "flights")
    assert warehouse.find_publish("b", 0) == 2
    assert warehouse.find_publish("b", 1) == 2
    assert warehouse.find_publish("b", 2) is None
    assert warehouse.find_publish("z", 0) is None


def test_a_rolled_back_log_is_reported_and_nothing_is_published_twice(
    warehouse: Warehouse,
) -> None:
    publish(warehouse, "a", "flights")
    with pytest.raises(LogBroken, match=r"ends at version 1, but b began at version 5.*older copy"):
        warehouse.append("b", 5, replaces("b", "flights"))
    assert warehouse.head() == 1


def test_a_publisher_that_loses_an_entry_takes_the_next_and_replaces_the_winner(
    warehouse: Warehouse,
) -> None:
    mine = replaces("mine", "flights")

    def overtaken(n: int, state: State) -> Entry:
        if n < 3:  # another job takes the slot just before we do
            assert warehouse.create_entry(n, replaces(f"other-{n}", "flights")(n, state))
        return mine(n, state)

    standing, created = warehouse.append("mine", 0, overtaken)

    assert created
    assert standing.n == 3
    assert standing.datasets["flights"].removed == ["other-2/flights"]
    assert [f.path for f in warehouse.dataset("flights").files] == ["mine/flights"]


def test_a_publisher_that_finds_its_own_id_in_the_entry_is_done(warehouse: Warehouse) -> None:
    def overtaken(n: int, state: State) -> Entry:
        assert warehouse.create_entry(n, replaces("mine", "flights")(n, state))
        return replaces("mine", "flights", "weather")(n, state)

    standing, created = warehouse.append("mine", 0, overtaken)

    assert not created
    assert warehouse.entry(1) == standing
    assert warehouse.head() == 1
    assert sorted(warehouse.state()) == ["flights"]


# Snapshots


def test_every_fiftieth_entry_is_followed_by_a_snapshot(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    for n in range(1, SNAPSHOT_EVERY + 2):
        publish(warehouse, f"job-{n}", "flights" if n % 2 else "weather")
    before = warehouse.state()
    log = tmp_path / "warehouse/_log"
    assert sorted(p.name for p in log.glob("*.snapshot.json")) == [
        f"{SNAPSHOT_EVERY:012d}.snapshot.json"
    ]

    (log / "000000000007.json").unlink()

    assert warehouse.state() == before, "the newest state needs no entry below the snapshot"
    with pytest.raises(LogBroken):
        warehouse.state(8)


def test_the_next_publisher_writes_the_snapshot_of_a_dead_one(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    for n in range(1, SNAPSHOT_EVERY + 1):
        publish(warehouse, f"job-{n}", "flights")
    snapshot = tmp_path / f"warehouse/_log/{SNAPSHOT_EVERY:012d}.snapshot.json"
    content = snapshot.read_bytes()
    snapshot.unlink()

    publish(warehouse, "next", "flights")

    assert snapshot.read_bytes() == content


def test_a_failed_snapshot_does_not_undo_the_publish(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for n in range(1, SNAPSHOT_EVERY):
        publish(warehouse, f"job-{n}", "flights")
    monkeypatch.setattr(warehouse.storage, "write_durable", full)
    assert publish(warehouse, "last", "flights") == SNAPSHOT_EVERY
    assert "No space left on device" in caplog.text


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _rows(text: str) -> str:
    return text.replace('"rows": ', '"rows": 9')


def _later(text: str) -> str:
    return text.replace('"version": 1', '"version": 2')


@pytest.mark.parametrize(
    "damage", [_cut, _rows, _later, lambda _: "", lambda _: "[]", lambda _: '{"sha256": 1}']
)
def test_a_damaged_snapshot_is_ignored_and_logged(
    warehouse: Warehouse,
    tmp_path: Path,
    damage: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for n in range(1, 6):
        publish(warehouse, f"job-{n}", "flights")
    before = warehouse.state()
    warehouse.write_snapshot(3)
    path = tmp_path / "warehouse/_log/000000000003.snapshot.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    with caplog.at_level(logging.WARNING):
        assert warehouse.state() == before
    assert "Snapshot 3" in caplog.text


@pytest.fixture
def in_memory() -> Callable[[], Warehouse]:
    root = f"memory://{uuid.uuid4().hex}"
    return lambda: Warehouse(f"{root}/{uuid.uuid4().hex}")


names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.tuples(
        st.dictionaries(
            names, st.sampled_from(["replace", "append", "drop one", "empty"]), max_size=3
        ),
        st.sampled_from(["no snapshot", "snapshot", "damaged snapshot"]),
    ),
    max_size=12,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps)
def test_any_version_read_through_snapshots_equals_the_fold_of_all_entries(
    in_memory: Callable[[], Warehouse], steps: list[tuple[dict[str, str], str]]
) -> None:
    warehouse = in_memory()
    for n, (changes, snapshot) in enumerate(steps, 1):
        state, datasets = warehouse.state(), {}
        for name, how in changes.items():
            old = [file.path for file in state[name].files] if name in state else []
            removed = {"replace": old, "append": [], "drop one": old[:1], "empty": old}[how]
            added = [] if how in ("drop one", "empty") else [DataFile(f"{n}/{name}", n, 1)]
            datasets[name] = Change(how, added, removed, sum(f.rows for f in added), SCHEMA)
        assert warehouse.create_entry(n, entry(n, f"job-{n}", **datasets))
        if snapshot != "no snapshot":
            warehouse.write_snapshot(n)
        if snapshot == "damaged snapshot":
            path = f"_log/{n:012d}.snapshot.json"
            warehouse.storage.write_durable(
                path, warehouse.storage.read(path).replace(b'"changed": ', b'"changed": 4')
            )

    expected = State()
    assert warehouse.state(0) == expected
    for n in range(1, len(steps) + 1):
        standing = warehouse.entry(n)
        assert standing is not None
        expected = fold(expected, standing)
        assert warehouse.state(n) == expected
    assert warehouse.state() == expected


# Readers


def stage_parquet(warehouse: Warehouse, path: str, values: list[int]) -> DataFile:
    local = warehouse.storage.local_path(path)
    assert local is not None
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), local)
    return DataFile(path, len(values), local.stat().st_size)


def publish_parquet(warehouse: Warehouse) -> None:
    """Version 1: x = 1, 2 in two files. Version 2: x = 7, and an empty dataset without files."""
    staging = "_staging/job/by_month.0/1-n-c"
    parts = [stage_parquet(warehouse, f"{staging}/x/part-{i}.parquet", [i]) for i in (1, 2)]
    assert warehouse.create_entry(1, entry(1, "one", x=Change("replace", parts, [], 2, SCHEMA)))
    new = stage_parquet(warehouse, "_staging/job/by_month.0/2-n-c/x/part-0.parquet", [7])
    changes = {
        "x": Change("replace", [new], [part.path for part in parts], 1, SCHEMA),
        "empty": Change("replace", [], [], 0, SCHEMA),
    }
    assert warehouse.create_entry(2, entry(2, "two", **changes))


def test_plain_python_reads_any_version_from_the_list_of_files(warehouse: Warehouse) -> None:
    publish_parquet(warehouse)

    def values(version: int | None) -> list[int]:
        files = published_files(warehouse, "x", version)
        return sorted(v for file in files for v in pq.ParquetFile(file).read()["x"].to_pylist())

    assert values(1) == [1, 2]
    assert values(2) == values(None) == [7]
    assert published_files(warehouse.storage.uri(""), "empty") == []


def test_a_reader_may_name_a_warehouse_relative_to_the_working_folder(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_parquet(warehouse)
    monkeypatch.chdir(tmp_path)
    assert published_files("warehouse", "x") == published_files(warehouse, "x")
    assert published_files("./warehouse", "x", 1) == published_files(warehouse, "x", 1)


SPARK_READER = """
import sys
from pyspark.sql import SparkSession
from unstuck import published
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
root = sys.argv[1]
for dataset, version in [("x", 1), ("x", 2), ("x", None), ("empty", None)]:
    frame = published(spark, root, dataset, version)
    print("ROWS", dataset, version, frame.dtypes, sorted(row.x for row in frame.collect()))
spark.stop()
"""


@pytest.mark.variant
def test_spark_reads_any_version_and_an_empty_dataset_with_its_columns(
    warehouse: Warehouse,
) -> None:
    publish_parquet(warehouse)
    done = subprocess.run(
        [sys.executable, "-c", SPARK_READER, warehouse.storage.uri("")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("ROWS")] == [
        "ROWS x 1 [('x', 'bigint')] [1, 2]",
        "ROWS x 2 [('x', 'bigint')] [7]",
        "ROWS x None [('x', 'bigint')] [7]",
        "ROWS empty None [('x', 'bigint')] []",
    ]
