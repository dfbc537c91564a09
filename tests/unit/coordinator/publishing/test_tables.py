"""Tables of every format: what each mode does to a table, once, in the order of the log; what is
refused before the log entry.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.failpoints import Death, Died, armed
from tests.support.tables.lake import COLUMNS, ONE, TWO, Lake, Rows, row
from tests.support.tables.lakes import lake_of
from unstuck import DatasetNotFound, published, published_files
from unstuck.coordinator.errors import TableTrouble
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing import tables
from unstuck.coordinator.publishing.publish_outputs import abort, publish
from unstuck.coordinator.publishing.tables import Target, check
from unstuck.coordinator.publishing.vacuum import vacuum
from unstuck.tasks.errors import InputNotPublished
from unstuck.tasks.failpoints import Point
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.warehouse.log import Warehouse

FORMATS = ["delta", "iceberg", pytest.param("iceberg over REST", marks=pytest.mark.variant)]


@pytest.fixture(params=FORMATS)
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lake]:
    with lake_of(request.param, tmp_path, monkeypatch) as lake:
        yield lake


def test_listed_partitions_are_replaced_and_one_without_rows_is_emptied(lake: Lake) -> None:
    by_day = lake.spec("partition_overwrite", partition_by=("day",))
    lake.publish("one", by_day, [row(1, ONE), row(2, TWO), row(3, None)])
    request = lake.stage("two", by_day, [row(4, TWO)], replaces=[{"day": ["2013-01-02", None]}])

    first = publish(request)
    assert publish(request) == first
    assert lake.ids == [1, 4]
    assert first.replaced["flights"].text() == "day=null: 1 → 0 rows, day=2013-01-02: 1 → 1 rows"

    emptied = publish(lake.stage("three", by_day, [], replaces=[{"day": ["2013-01-02"]}]))
    assert (lake.ids, emptied.replaced["flights"].shrunk) == ([1], 1)


NESTED_COLUMN = pa.list_(pa.struct([("n", pa.int64()), ("tags", pa.map_("string", "string"))]))


def nested_type(value: Any) -> dict[str, Any]:
    """An array of structs with a map whose values have this type."""
    parts = {
        "n": "long",
        "tags": {
            "type": "map",
            "keyType": "string",
            "valueType": value,
            "valueContainsNull": True,
        },
    }
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in parts.items()]
    struct = {"type": "struct", "fields": fields}
    return {"type": "array", "elementType": struct, "containsNull": True}


@pytest.mark.parametrize(
    ("value", "code"), [("string", None), ("void", "SCHEMA_MISMATCH"), ("x", "SCHEMA_MISMATCH")]
)
def test_nested_columns_are_published_unless_the_format_lacks_a_type(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, value: str, code: str | None
) -> None:
    monkeypatch.setitem(COLUMNS, "parts", (NESTED_COLUMN, nested_type(value)))
    parts = [{"n": 1, "tags": [("a", "b")]}, {"n": 2, "tags": []}]
    failed = lake.publish("one", lake.spec("append"), [{**row(1), "parts": parts}]).failed
    assert (failed.code if failed is not None else None) == code
    if code is None:
        assert lake.arrow()["parts"].to_pylist() == [parts]
    else:
        assert failed is not None
        assert f"{lake.spec('append').table_format.title} has no such type: parts" in failed.text


def test_append_creates_the_table_and_appends_once(lake: Lake) -> None:
    append = lake.spec("append")
    assert lake.publish("one", append, [row(1), row(2)]).version == 1
    request = lake.stage("two", append, [row(3)])

    first = publish(request)
    assert publish(request) == first == PublishResult(version=2, rows={"flights": 1})
    assert (lake.ids, lake.commits) == ([1, 2, 3], 2)


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("append", [7, 8]), ("replace", [8]), ("merge", [7, 8])],
    ids=["append", "replace", "merge"],
)
def test_rejected_rows_stay_a_dataset_of_the_warehouse(
    lake: Lake, mode: str, kept: list[int]
) -> None:
    output = lake.spec(mode, keys=("id",) if mode == "merge" else ())
    for job, good, bad in (("one", 1, 7), ("two", 2, 8)):
        assert publish(lake.stage(job, output, [row(good)], rejected=[row(bad)])).failed is None

    rejected = [
        one["id"]
        for path in published_files(lake.root, "flights__rejected")
        for one in pq.read_table(path).to_pylist()
    ]
    assert sorted(rejected) == kept
    assert lake.ids == ([2] if mode == "replace" else [1, 2])


@pytest.mark.variant
@pytest.mark.parametrize("mode", ["append", "replace", "partition_overwrite"])
def test_two_retries_that_reuse_the_same_files_write_their_rows_once(lake: Lake, mode: str) -> None:
    output = lake.spec(mode, partition_by=("day", "air"))
    lake.publish("before", output, [row(1, TWO)])
    failed = lake.stage("failed", output, [row(2), row(3, ONE, "a b/é%")])
    for number, retry in enumerate(("first", "second")):
        assert publish(replace(failed, publish_id=retry, job=retry)).version == number + 2
        assert lake.ids == ([2, 3] if mode == "replace" else [1, 2, 3])


@pytest.mark.variant
def test_two_retries_append_rows_once_although_the_table_is_optimized_in_between(
    lake: Lake,
) -> None:
    append = lake.spec("append")
    failed = lake.stage("failed", append, [row(2)])
    assert publish(replace(failed, publish_id="first", job="first")).rows == {"flights": 1}
    lake.publish("other", append, [row(5)])
    lake.compact()

    second = publish(replace(failed, publish_id="second", job="second"))
    assert (second.version, second.rows) == (3, {"flights": 0})
    assert lake.ids == [2, 5]


@pytest.mark.variant
def test_two_retries_append_rows_once_although_the_table_is_replaced_in_between(
    lake: Lake,
) -> None:
    append, elsewhere = lake.spec("append"), lake.elsewhere()
    failed = lake.stage("failed", append, [row(2)])
    publish(replace(failed, publish_id="first", job="first"))
    lake.publish("beside", append, [row(5)])
    elsewhere.publish("other", elsewhere.spec("replace"), [row(7)])
    lake.compact()  # now the log alone knows what was appended

    publish(replace(failed, publish_id="second", job="second"))
    assert (lake.ids, elsewhere.ids) == ([2, 5], [7])


def test_replace_leaves_only_new_rows_and_keeps_old_table_versions(lake: Lake) -> None:
    lake.publish("one", lake.spec("replace"), [row(1), row(2)])
    lake.publish("two", lake.spec("replace"), [row(3)])

    assert lake.ids == [3]
    assert lake.arrow(1).num_rows == 2
    lake.publish("three", lake.spec("replace"), [])
    assert lake.ids == []


@pytest.mark.parametrize("air", ["UA", None, "a b/é%", "x=1", "q'\"z"])
def test_partition_overwrite_replaces_any_combination_of_partition_values(
    lake: Lake, air: str | None
) -> None:
    by = lake.spec("partition_overwrite", partition_by=("day", "air"))
    kept = [row(1, ONE, "AA"), row(2, TWO, air), row(3, None, air)]
    lake.publish("one", by, [*kept, row(4, ONE, air)])
    lake.publish("two", by, [row(5, ONE, air), row(6, TWO, "AA")])

    assert lake.rows == sorted([*kept, row(5, ONE, air), row(6, TWO, "AA")], key=str)


def test_partition_overwrite_includes_partitions_of_other_writers(lake: Lake) -> None:
    lake.write([row(1, ONE, "a b/é%"), row(2, TWO, "a b/é%")], ["day", "air"])

    by = lake.spec("partition_overwrite", partition_by=("day", "air"))
    lake.publish("one", by, [row(3, ONE, "a b/é%")])
    assert lake.ids == [2, 3]


def test_merge_replaces_rows_with_equal_keys_and_inserts_the_others(lake: Lake) -> None:
    merge = lake.spec("merge", keys=("id", "day"))
    lake.publish("one", merge, [row(1), row(2), row(2, TWO)])
    request = lake.stage("two", merge, [row(2, ONE, "DL"), row(9, TWO, "DL")])
    assert publish(request) == publish(request)

    assert lake.rows == sorted([row(1), row(2, ONE, "DL"), row(2, TWO), row(9, TWO, "DL")], key=str)
    assert lake.commits == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [([row(1), row(1)], "the same in several rows"), ([row(None)], "null in some row")],
)
def test_duplicate_keys_fail_before_anything_is_published(
    lake: Lake, rows: Rows, words: str
) -> None:
    result = lake.publish("one", lake.spec("merge", keys=("id",)), rows)

    assert result.failed is not None
    assert result.failed.code == "KEYS_UNFIT"
    assert words in result.failed.text
    assert not lake.exists


def test_a_table_with_other_columns_or_partitions_fails_before_the_publish(
    lake: Lake,
) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])

    def code(job: str, output: OutputSpec, extra: str = "") -> str:
        failed = lake.publish(job, output, [row(2)], extra).failed
        assert failed is not None
        return failed.code

    assert code("two", lake.spec("append"), "more") == "SCHEMA_MISMATCH"
    assert code("three", lake.spec("append", partition_by=("day",))) == "PARTITION_MISMATCH"
    assert code("four", lake.spec("merge", keys=("nothing",))) == "KEYS_UNFIT"
    assert lake.ids == [1]


@pytest.mark.variant
@pytest.mark.parametrize(
    ("partition_by", "extra", "code"),
    [((), "", "PARTITION_MISMATCH"), (("day",), "more", "SCHEMA_MISMATCH"), (("day",), "", None)],
)
@pytest.mark.parametrize("dies", ["before its slot is known", "before its table is made", "never"])
def test_a_job_that_publishes_after_the_check_is_detected(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    dies: str,
    partition_by: tuple[str, ...],
    extra: str,
    code: str | None,
) -> None:
    """Of two jobs that make one table, the second was checked while there was none."""
    points = {
        "before its slot is known": [Point.AFTER_ENTRY],
        "before its table is made": [Point.BEFORE_TABLE],
    }
    first = lake.stage("one", lake.spec("append", partition_by=("day",)), [row(1)])
    second = lake.stage("two", lake.spec("append", partition_by=partition_by), [row(2)], extra)

    def then_another_publishes(*arguments: Any) -> Target:
        found = check(*arguments)
        monkeypatch.setattr(tables, "check", check)
        with armed(Death(points.get(dies, []))), suppress(Died):
            publish(first)
        return found

    monkeypatch.setattr(tables, "check", then_another_publishes)
    failed = publish(second).failed
    assert (failed.code if failed is not None else None) == code
    assert publish(first).version == 1
    assert lake.ids == ([1] if code else [1, 2])


def test_a_table_changed_after_the_entry_gets_no_rows_with_other_columns(
    lake: Lake,
) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    request = lake.stage("two", lake.spec("append"), [row(2)])
    with armed(Death([Point.AFTER_ENTRY])), pytest.raises(Died):
        publish(request)
    lake.add_column()

    with pytest.raises(TableTrouble, match=r"entry 2 of the log .* removed more \(bigint\)"):
        publish(request)
    assert lake.arrow()["id"].to_pylist() == [1]
    lake.remove_column()
    assert publish(request).version == 2
    assert lake.ids == [1, 2]


@pytest.mark.variant
@pytest.mark.parametrize("mode", ["append", "replace", "partition_overwrite", "merge"])
@pytest.mark.parametrize("point", [Point.AFTER_ENTRY, Point.BEFORE_TABLE, Point.AFTER_TABLE])
def test_a_dead_publisher_is_replaced_and_the_table_has_one_commit(
    lake: Lake, mode: str, point: Point
) -> None:
    more = {"keys": ("id",)} if mode == "merge" else {"partition_by": ("day",)}
    output = lake.spec(mode, **more)
    lake.publish("one", output, [row(1, ONE), row(2, TWO)])
    request = lake.stage("two", output, [row(3, ONE)])
    with armed(Death([point])), pytest.raises(Died):
        publish(request)
    assert lake.commits == (2 if point is Point.AFTER_TABLE else 1)

    assert publish(request).version == 2
    assert publish(request).version == 2
    assert lake.commits == 2
    assert (
        lake.ids
        == {"append": [1, 2, 3], "replace": [3], "partition_overwrite": [2, 3], "merge": [1, 2, 3]}[
            mode
        ]
    )


def test_a_cancel_after_the_log_entry_still_writes_the_table(lake: Lake) -> None:
    request = lake.stage("one", lake.spec("append"), [row(1)])
    with armed(Death([Point.BEFORE_TABLE])), pytest.raises(Died):
        publish(request)
    assert abort(request, Reason("USER_CANCELED", "by alice")).version == 1
    assert lake.ids == [1]


def test_entries_are_written_to_the_table_in_log_order(lake: Lake) -> None:
    late = lake.stage("one", lake.spec("replace"), [row(1)])
    with armed(Death([Point.BEFORE_TABLE])), pytest.raises(Died):
        publish(late)

    lake.publish("two", lake.spec("replace"), [row(2)])
    assert publish(late).version == 1
    assert (lake.ids, lake.commits) == ([2], 2)
    assert lake.arrow(1)["id"].to_pylist() == [1]


def test_two_concurrent_publishers_make_one_commit_per_job(lake: Lake) -> None:
    requests = [lake.stage(f"job{i}", lake.spec("append"), [row(i)]) for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(publish, [*requests, *requests]))

    assert found[:4] == found[4:]
    assert (lake.ids, lake.commits) == ([0, 1, 2, 3], 4)


@pytest.mark.variant
@pytest.mark.parametrize("mode", ["append", "replace", "merge"])
def test_a_concurrent_external_writer_is_detected(lake: Lake, mode: str) -> None:
    output = lake.spec(mode, **({"keys": ("id",)} if mode == "merge" else {}))
    lake.publish("one", output, [row(1)])
    came: list[Point] = []

    def outside(point: Point, job: str) -> None:
        if point is Point.BEFORE_TABLE and not came:
            came.append(point)
            # Between the look at the table and the commit: the publisher has the version before in
            # its hands.
            lake.write([row(2), row(3)])

    with armed(outside):
        lake.publish("two", output, [row(3, ONE, "DL")])
    assert lake.ids == {"append": [1, 2, 3, 3], "replace": [3], "merge": [1, 2, 3]}[mode]
    assert lake.commits == 3


def test_the_log_names_the_table_and_a_vacuum_removes_only_staged_files(lake: Lake) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    lake.publish("two", lake.spec("append"), [row(2)])
    place = Warehouse(lake.root)

    table = place.dataset("flights").table
    assert table is not None
    assert (table.format, table.path) == (lake.format, lake.path)
    assert [entry.job for entry in place.history("flights", 10)] == ["two", "one"]
    with pytest.raises(DatasetNotFound, match="versions of its own; read it there, with Spark"):
        published_files(lake.root, "flights")
    with pytest.raises(DatasetNotFound, match="versions of its own; read it there, with Spark"):
        published(None, lake.root, "flights")  # refused before Spark is asked
    assert vacuum(place, lambda path: False, keep=1, before=2000.0).files == 2
    lake.publish("three", lake.spec("append"), [row(3)])
    assert lake.ids == [1, 2, 3]


def test_a_vacuum_keeps_files_not_yet_in_the_table(lake: Lake) -> None:
    request = lake.stage("one", lake.spec("append"), [row(1)])
    with armed(Death([Point.BEFORE_TABLE])), pytest.raises(Died):
        publish(request)
    assert vacuum(Warehouse(lake.root), lambda path: False, keep=1, before=2000.0).files == 0
    publish(request)
    assert lake.ids == [1]


def test_a_warehouse_restored_from_an_old_copy_skips_no_publish(
    lake: Lake,
) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    shutil.copytree(lake.root, f"{lake.root}.copy")
    lake.publish("two", lake.spec("append"), [row(2)])
    shutil.rmtree(lake.root)
    shutil.move(f"{lake.root}.copy", lake.root)

    failed = lake.publish("three", lake.spec("append"), [row(3)]).failed
    assert failed is not None
    assert "restored from an older copy" in failed.text


def test_only_replace_turns_a_warehouse_dataset_into_a_table(lake: Lake) -> None:
    lake.publish("one", OutputSpec(), [row(1)])
    failed = lake.publish("two", lake.spec("append"), [row(2)]).failed
    assert failed is not None
    assert failed.code == "FORMAT_MISMATCH"
    lake.publish("three", lake.spec("replace"), [row(3)])
    assert lake.ids == [3]
    lake.publish("four", OutputSpec(), [row(4)])
    assert len(published_files(lake.root, "flights")) == 1


def test_reading_a_table_as_a_published_dataset_is_refused_and_never_empty(
    lake: Lake,
) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])

    with pytest.raises(InputNotPublished, match=f"is published as the .* table {lake.path}"):
        PublishedDatasets(Warehouse(lake.root), 1).read("flights")
