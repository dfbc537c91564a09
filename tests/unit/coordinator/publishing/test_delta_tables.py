"""Delta tables: what is refused, and files of others below a table."""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.failpoints import Death, Died, armed
from tests.support.tables.delta_lake import DeltaLake
from tests.support.tables.lake import row
from unstuck.coordinator.errors import TableTrouble
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing import tables
from unstuck.coordinator.publishing.publish_outputs import abort, publish
from unstuck.coordinator.publishing.table_formats.delta_files import DeltaFiles
from unstuck.coordinator.publishing.tables import Target, check
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(str(tmp_path / "warehouse"), str(tmp_path / "lake/flights"))


def test_a_table_with_a_constraint_is_refused(lake: DeltaLake) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    DeltaTable(lake.path).alter.add_constraint({"positive": "id > 0"})
    failed = lake.publish("two", lake.spec("append"), [row(2)]).failed
    assert failed is not None
    assert (failed.code, lake.ids) == ("TABLE_UNFIT", [1])


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_partition_value_that_other_readers_read_as_null_is_refused(
    lake: DeltaLake, text: str
) -> None:
    failed = lake.publish(
        "one", lake.spec("append", partition_by=("air",)), [row(1, air=text)]
    ).failed
    assert failed is not None
    assert (failed.code, "cannot tell from null" in failed.text) == ("PARTITION_MISMATCH", True)
    assert not DeltaTable.is_deltatable(lake.path)


def test_leftover_files_of_an_unfinished_publisher_fail_no_other_job(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = lake.spec("append", partition_by=("day",))
    first, second = lake.stage("one", output, [row(1)]), lake.stage("two", output, [row(2)])

    def dies(files: DeltaFiles) -> None:
        raise Died

    def comes_late(*arguments: Any) -> Target:
        monkeypatch.setattr(tables, "check", check)
        with monkeypatch.context() as patched:
            patched.setattr(DeltaFiles, "sync_folder", dies)
            with pytest.raises(Died):
                publish(first)
        assert list(Path(lake.path).rglob("unstuck-*.parquet"))
        assert not DeltaTable.is_deltatable(lake.path)
        return check(*arguments)

    monkeypatch.setattr(tables, "check", comes_late)
    assert publish(second).failed is None
    assert publish(first).failed is None
    assert lake.ids == [1, 2]


def test_a_non_empty_folder_or_a_place_in_the_warehouse_is_refused(lake: DeltaLake) -> None:
    Path(lake.path).mkdir(parents=True)
    Path(lake.path, "something.csv").write_text("a")
    failed = lake.publish("one", lake.spec("append"), [row(1)]).failed
    assert failed is not None
    assert (failed.code, "its folder has files, but there is no Delta table" in failed.text) == (
        "TABLE_UNFIT",
        True,
    )

    inside = replace(lake, path=f"{lake.root}/flights")
    failed = inside.publish("two", inside.spec("append"), [row(1)]).failed
    assert failed is not None
    assert (failed.code, "inside the warehouse" in failed.text) == ("TABLE_UNFIT", True)


@pytest.mark.parametrize(
    "others", ["year=2025/part-0.parquet", "_delta_log_backup/0.json", "notes.txt"]
)
@pytest.mark.parametrize("on", ["disk", "an object store"])
def test_foreign_files_are_found_at_any_depth(tmp_path: Path, on: str, others: str) -> None:
    root = str(tmp_path / "sales") if on == "disk" else f"memory://{uuid.uuid4().hex}/sales"
    files, place = Files(root), DeltaFiles(root)
    assert not place.has_strangers()
    for ours in ("unstuck-1.parquet", "year=2024/unstuck-2.parquet", "_delta_log/0.json"):
        files.create(ours, b"ours")
    assert not place.has_strangers()
    files.create(others, b"of others")
    assert place.has_strangers()


def test_an_unwritable_place_is_detected_before_the_log_entry(
    lake: DeltaLake,
) -> None:
    Path(lake.root).mkdir()
    Path(lake.root).with_name("file").write_text("no folder")
    wrong = replace(lake, path=f"{Path(lake.root).with_name('file')}/flights")
    request = wrong.stage("one", wrong.spec("append"), [row(1)])
    with pytest.raises(TableTrouble, match="Not a directory"):
        publish(request)
    assert Warehouse(lake.root).head() == 0

    canceled = abort(request, Reason("USER_CANCELED", "by alice")).failed
    assert canceled is not None
    assert lake.publish("two", lake.spec("append"), [row(2)]).version == 2, (
        "the name of the dataset is not taken"
    )
    assert lake.ids == [2]


def test_an_unreachable_table_is_retried_and_named_in_the_error(lake: DeltaLake) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    request = lake.stage("two", lake.spec("append"), [row(2)])
    with armed(Death([Point.AFTER_ENTRY])), pytest.raises(Died):
        publish(request)
    away = Path(lake.path).with_name("away")
    shutil.move(lake.path, away)
    Path(lake.path).write_text("not a folder")
    with pytest.raises(TableTrouble, match=f"the Delta table {lake.path} of flights"):
        publish(request)

    Path(lake.path).unlink()
    shutil.move(away, lake.path)
    assert publish(request).version == 2
    assert lake.ids == [1, 2]


def test_a_log_entry_without_a_format_means_a_delta_table(lake: DeltaLake) -> None:
    lake.publish("one", lake.spec("append"), [row(1)])
    entry = Path(lake.root, "_log", f"{1:012d}.json")
    stored = json.loads(entry.read_text())
    assert stored["tables"]["flights"].pop("format") == "delta"
    entry.write_text(json.dumps(stored))

    assert lake.publish("two", lake.spec("append"), [row(2)]).version == 2
    assert lake.ids == [1, 2]
