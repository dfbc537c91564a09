"""Iceberg tables: lost replies of a catalog, expired snapshots, merges, and what is refused."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, ListType, LongType, NestedField, StringType

from tests.support.duckdb_extensions import query
from tests.support.failpoints import armed
from tests.support.network.rest_catalog import rest_catalog
from tests.support.network.s3_server import SeaweedFS
from tests.support.tables.delta_lake import DeltaLake
from tests.support.tables.iceberg_lake import IcebergLake
from tests.support.tables.lake import COLUMNS, ONE, TWO, row
from tests.support.tables.lakes import configure, iceberg_lake
from unstuck.coordinator.errors import TableTrouble
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergLake]:
    with iceberg_lake(tmp_path, monkeypatch) as lake:
        yield lake


@pytest.mark.parametrize("fault", ["lost reply", "repeated request"])
def test_a_commit_without_a_reply_is_found_and_not_repeated(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A proxy may also repeat the request, and the catalog refuses the repeat."""
    append = lake.spec("append")
    with rest_catalog(lake.catalog) as server:
        configure(monkeypatch, lake.path.split(".")[0], type="rest", uri=server.uri)
        assert lake.publish("one", append, [row(1)]).version == 1
        request = lake.stage("two", append, [row(2)])
        if fault == "lost reply":
            server.lost_replies = 1
            with pytest.raises(TableTrouble, match=f"the Iceberg table {lake.path} of flights"):
                publish(request)
        else:
            server.repeated_requests = 1
        assert publish(request).version == 2
    assert (lake.ids, lake.commits) == ([1, 2], 2)


@pytest.mark.parametrize("lost", ["snapshots", "properties"])
def test_a_commit_is_found_after_its_snapshot_has_expired_or_its_property_was_removed(
    lake: IcebergLake, lost: str
) -> None:
    append = lake.spec("append")
    first = lake.stage("one", append, [row(1)])
    publish(first)
    Path(lake.root, "_log", f"{1:012d}.tables.json").unlink()  # as after a death before it
    if lost == "snapshots":
        lake.write([row(2)])
        before = [snapshot.snapshot_id for snapshot in lake.table.metadata.snapshots][:-1]
        lake.table.maintenance.expire_snapshots().by_ids(before).commit()
        assert lake.commits == 1
    else:
        lake.write([row(2)])
        ours = [name for name in lake.table.properties if name.startswith("unstuck/")]
        with lake.table.transaction() as transaction:
            transaction.remove_properties(*ours)
    assert publish(first).version == 1
    assert lake.ids == [1, 2]


def test_columns_changed_between_read_and_commit_prevent_the_commit(lake: IcebergLake) -> None:
    """A catalog compares snapshots, and a change of columns makes none."""
    lake.publish("one", lake.spec("append"), [row(1)])
    came: list[Point] = []

    def outside(point: Point, job: str) -> None:
        if point is Point.BEFORE_TABLE and not came:
            came.append(point)
            lake.add_column()

    request = lake.stage("two", lake.spec("append"), [row(2)])
    with armed(outside), pytest.raises(TableTrouble, match=r"removed more \(bigint\)"):
        publish(request)
    assert lake.commits == 1
    lake.remove_column()
    assert publish(request).version == 2
    assert lake.ids == [1, 2]


KEYS: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "boolean": (pa.bool_(), "boolean", [True, False]),
    "tinyint": (pa.int8(), "byte", [1, 2]),
    "int": (pa.int32(), "integer", [1, 2]),
    "string": (pa.string(), "string", ["", "é%"]),
    "binary": (pa.binary(), "binary", [b"a", b"b"]),
    "date": (pa.date32(), "date", [ONE, TWO]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        "timestamp",
        [datetime.datetime(2013, 1, day, tzinfo=datetime.UTC) for day in (1, 2)],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        "timestamp_ntz",
        [datetime.datetime(2013, 1, day) for day in (1, 2)],
    ),
    "decimal": (
        pa.decimal128(9, 2),
        "decimal(9,2)",
        [decimal.Decimal("1.10"), decimal.Decimal("-2.20")],
    ),
}


@pytest.mark.variant
@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_merged_by_keys_of_each_type(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    arrow, name, (first, second) = KEYS[kind]
    monkeypatch.setitem(COLUMNS, "air", (arrow, name))
    merge = lake.spec("merge", keys=("air",))
    lake.publish("one", merge, [row(1, ONE, first), row(2, ONE, second)])
    lake.publish("two", merge, [row(3, TWO, second)])
    rows = [(line["id"], line["air"]) for line in lake.arrow().to_pylist()]
    assert sorted(rows, key=str) == [(1, first), (3, second)]


def test_a_merge_keeps_rows_with_null_keys_and_files_without_the_keys(lake: IcebergLake) -> None:
    merge = lake.spec("merge", keys=("id",))
    lake.write([row(None), row(1)])
    lake.write([row(50)])
    lake.write([row(2), row(9)])
    before = {task.file.file_path for task in lake.table.scan().plan_files()}

    lake.publish("one", merge, [row(1, TWO), row(2, TWO), row(3, TWO)])
    assert lake.rows == sorted(
        [row(None), row(1, TWO), row(2, TWO), row(3, TWO), row(9), row(50)], key=str
    )
    after = {task.file.file_path for task in lake.table.scan().plan_files()}
    assert len(before & after) == 1, "that of the row 50"


def test_many_rows_are_merged_by_composite_keys(lake: IcebergLake) -> None:
    """pyiceberg's own filter of so many keys ends the process."""
    merge = lake.spec("merge", keys=("id", "air"))
    old = [row(number, ONE, str(number)) for number in range(20_000)]
    lake.publish("one", merge, old)
    lake.publish("two", merge, [row(number, TWO, str(number)) for number in range(5_000, 25_000)])
    days = [line["day"] for line in lake.arrow().to_pylist()]
    assert (len(days), days.count(ONE)) == (25_000, 5_000)


@pytest.mark.parametrize("kind", ["double", "array"])
def test_a_key_that_cannot_be_compared_is_refused(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    nested = {"type": "array", "elementType": "long", "containsNull": True}
    arrow, name = (pa.float64(), "double") if kind == "double" else (pa.list_(pa.int64()), nested)
    monkeypatch.setitem(COLUMNS, "air", (arrow, name))
    value: Any = 1.0 if kind == "double" else [1]
    failed = lake.publish("one", lake.spec("merge", keys=("air",)), [row(1, ONE, value)]).failed
    assert failed is not None
    assert (failed.code, "keys: air cannot be compared" in failed.text) == ("KEYS_UNFIT", True)
    assert not lake.exists


@pytest.mark.parametrize("air", ["", "__HIVE_DEFAULT_PARTITION__", "x" * 5000], ids=len)
def test_any_text_can_be_a_partition_value(lake: IcebergLake, air: str) -> None:
    by_air = lake.spec("partition_overwrite", partition_by=("air",))
    lake.publish("one", by_air, [row(1, ONE, air), row(2, ONE, None), row(3, ONE, "UA")])
    lake.publish("two", by_air, [row(4, ONE, air)])
    assert lake.ids == [2, 3, 4]


@pytest.mark.variant
def test_narrow_integers_are_stored_as_integers(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COLUMNS, "air", (pa.int16(), "short"))
    line: dict[str, Any] = {**row(1), "air": -5}
    lake.publish("one", lake.spec("append"), [line])
    assert lake.publish("two", lake.spec("append"), [line]).failed is None
    assert lake.arrow()["air"].to_pylist() == [-5, -5]


def with_day_transform(lake: IcebergLake) -> None:
    fields = (NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    columns = Schema(*fields, NestedField(3, "air", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day_of_it"))
    lake.catalog.create_table(lake.identifier, columns, partition_spec=spec)


def of_format_version_3(lake: IcebergLake) -> None:
    columns = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
    table = lake.catalog.create_table(lake.identifier, columns)
    stored = Path(table.metadata_location.removeprefix("file://"))
    metadata = {**json.loads(stored.read_text()), "format-version": 3, "next-row-id": 0}
    stored.write_text(json.dumps(metadata))


def with_other_name_mapping(lake: IcebergLake) -> None:
    columns = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
    mapping = '[{"field-id": 1, "names": ["number"]}]'
    lake.catalog.create_table(
        lake.identifier, columns, properties={"schema.name-mapping.default": mapping}
    )


def with_parts_that_are_never_null(lake: IcebergLake) -> None:
    parts = ListType(2, LongType(), element_required=True)
    columns = Schema(NestedField(1, "id", LongType()), NestedField(3, "parts", parts))
    lake.catalog.create_table(lake.identifier, columns)


UNFIT = {
    with_day_transform: ("PARTITION_MISMATCH", "partitioned by day(day)"),
    of_format_version_3: ("TABLE_UNFIT", "format version 3"),
    with_other_name_mapping: ("TABLE_UNFIT", "a name mapping without id, day, air"),
    with_parts_that_are_never_null: ("TABLE_UNFIT", "parts that are never null"),
}


@pytest.mark.parametrize("create", UNFIT)
def test_a_table_that_cannot_be_written_is_refused(lake: IcebergLake, create: Any) -> None:
    lake.catalog.create_namespace(lake.identifier[:-1])
    create(lake)
    failed = lake.publish("one", lake.spec("append"), [row(1)]).failed
    assert failed is not None
    code, words = UNFIT[create]
    assert (failed.code, words in failed.text) == (code, True)
    assert lake.table.metadata.snapshots == []


def test_partitions_of_an_older_partition_spec_are_not_overwritten(lake: IcebergLake) -> None:
    lake.write([row(1)])
    with lake.table.update_spec() as update:
        update.add_identity("day")
    by_day = lake.spec("partition_overwrite", partition_by=("day",))
    failed = lake.publish("one", by_day, [row(2)]).failed
    assert failed is not None
    assert "files of an older partitioning" in failed.text
    lake.publish("two", lake.spec("replace", partition_by=("day",)), [row(3)])
    assert lake.publish("three", by_day, [row(4)]).failed is None
    assert lake.ids == [4]


def test_an_unconfigured_catalog_is_named_and_retried(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.path = "nowhere.lake.flights"
    request = lake.stage("one", lake.spec("append"), [row(1)])
    with pytest.raises(TableTrouble, match="has no Iceberg catalog nowhere"):
        publish(request)
    assert Warehouse(lake.root).head() == 0


def test_a_coordinator_without_pyiceberg_says_how_to_install_it(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = lake.stage("one", lake.spec("append"), [row(1)])
    module = "unstuck.coordinator.publishing.table_formats.iceberg.catalog"
    with monkeypatch.context() as without:
        without.delitem(sys.modules, module, raising=False)
        without.setitem(sys.modules, "pyiceberg.catalog", None)
        with pytest.raises(TableTrouble, match=r"pip install -e '\.\[iceberg\]'"):
            publish(request)
    assert publish(request).version == 1


def test_a_table_inside_the_warehouse_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with iceberg_lake(tmp_path, monkeypatch, below="warehouse/tables") as lake:
        failed = lake.publish("one", lake.spec("append"), [row(1)]).failed
    assert failed is not None
    assert (failed.code, "inside the warehouse" in failed.text) == ("TABLE_UNFIT", True)


def test_a_local_commit_and_its_files_are_synced_to_disk(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    lake.publish("one", lake.spec("append"), [row(1)])
    table = lake.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
    data = [task.file.file_path for task in table.scan().plan_files()]
    files = [table.metadata_location, snapshot.manifest_list, *manifests, *data]
    assert {file.removeprefix("file://") for file in files} <= synced


def test_only_replace_changes_the_format_of_a_dataset(lake: IcebergLake, tmp_path: Path) -> None:
    delta = DeltaLake(lake.root, str(tmp_path / "delta"))
    delta.publish("one", delta.spec("append"), [row(1)])
    failed = lake.publish("two", lake.spec("append"), [row(2)]).failed
    assert failed is not None
    assert failed.code == "FORMAT_MISMATCH"
    lake.publish("three", lake.spec("replace"), [row(3)])
    assert (delta.ids, lake.ids) == ([1], [3])


@pytest.mark.long
def test_duckdb_with_its_extension_reads_tables_of_every_mode(lake: IcebergLake) -> None:
    """It finds the columns of our files by their names, and those of other writers by their ids."""
    by_day = lake.spec("partition_overwrite", partition_by=("day",))
    lake.publish("one", by_day, [row(1, ONE), row(2, TWO)])
    lake.publish("two", by_day, [row(3, ONE)])
    merge = lake.spec("merge", keys=("id",), partition_by=("day",))
    lake.publish("three", merge, [row(2, TWO, "merged"), row(4, TWO)])
    lake.write([row(5)])

    columns = ", ".join(COLUMNS)
    scan = f"SELECT {columns} FROM iceberg_scan('{lake.table.metadata_location}') ORDER BY id"
    rows = query(scan.replace("file://", ""), {})
    assert [(line[0], line[2]) for line in rows] == [
        (2, "merged"),
        (3, "UA"),
        (4, "UA"),
        (5, "UA"),
    ]


@pytest.mark.long
def test_a_catalog_of_another_maker_gets_each_commit_once(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The REST catalog of SeaweedFS, whose tables are on S3."""
    name, settings = f"c{uuid.uuid4().hex}", seaweedfs.make_catalog()
    configure(monkeypatch, name, **settings)
    catalog = load_catalog(name, **settings)
    lake = IcebergLake(str(tmp_path / "warehouse"), f"{name}.lake.flights", catalog=catalog)
    by_day: dict[str, Any] = {"partition_by": ("day",)}
    overwrite, append = lake.spec("partition_overwrite", **by_day), lake.spec("append", **by_day)
    first = lake.stage("one", overwrite, [row(1), row(2, TWO)])
    assert publish(first) == publish(first)
    lake.publish("two", overwrite, [row(3)])
    merge = lake.spec("merge", keys=("id",), **by_day)
    lake.publish("three", merge, [row(2, TWO, "merged"), row(4, TWO)])
    lines = sorted(lake.arrow().to_pylist(), key=str)
    assert lines == [row(2, TWO, "merged"), row(3), row(4, TWO)]

    requests = [lake.stage(f"job{i}", append, [row(10 + i)]) for i in range(3)]
    with ThreadPoolExecutor(6) as pool:
        versions = [result.version for result in pool.map(publish, [*requests, *requests])]
    assert versions[:3] == versions[3:]
    assert lake.commits == 6
    failed = lake.publish("four", append, [row(20)], "more").failed
    assert failed is not None
    assert failed.code == "SCHEMA_MISMATCH"
    lake.publish("five", lake.spec("replace", **by_day), [row(30)])
    assert lake.arrow()["id"].to_pylist() == [30]
    catalog.close()


def test_a_late_publisher_changes_no_file_of_the_commit(lake: IcebergLake) -> None:
    """Both read the table before the entry was written into it."""
    merge = lake.spec("merge", keys=("id",))
    lake.publish("one", merge, [row(1), row(2)])
    request = lake.stage("two", merge, [row(2, TWO), row(3)])
    committed: dict[str, os.stat_result] = {}

    def another_is_first(point: Point, job: str) -> None:
        if point is Point.BEFORE_TABLE and not committed:
            with armed(lambda point, job: None):
                publish(request)
            committed.update(data_files(lake))

    with armed(another_is_first):
        publish(request)
    assert len(committed) == 2
    assert {path: about.st_mtime_ns for path, about in data_files(lake).items()} == {
        path: about.st_mtime_ns for path, about in committed.items()
    }
    assert (lake.ids, lake.commits) == ([1, 2, 3], 2)


def data_files(lake: IcebergLake) -> dict[str, os.stat_result]:
    paths = [task.file.file_path for task in lake.table.scan().plan_files()]
    return {path: os.stat(path.removeprefix("file://")) for path in paths}
