"""What a reader finds by ``published_files`` and ``datasets --head`` is what was published."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck import published, published_files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.tasks.warehouse.published import head_rows, read_arrow
from unstuck.testing import Unstuck

DAYS = ("2026-01-01", "2026-01-02", None)
FIELDS = [("day", "date"), ("n", "long"), ("late", "boolean"), ("raw", "binary")]
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in FIELDS],
    }
)


@pytest.fixture
def parted(tmp_path: Path) -> Warehouse:
    """Three days of two files each, of which the second holds the delayed; 10 rows a file."""
    warehouse = Warehouse(str(tmp_path / "warehouse"))
    warehouse.ensure_id()
    files = []
    for number, (day, late) in enumerate((day, late) for day in DAYS for late in (False, True)):
        path = tmp_path / "warehouse" / f"_staging/j/{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        at = None if day is None else date.fromisoformat(day)
        # The columns stand in another order than the dataset lists them, and one is not there.
        rows = {
            "n": range(10 * number, 10 * number + 10),
            "late": [late] * 10,
            "day": pa.array([at] * 10, pa.date32()),
        }
        pq.write_table(
            pa.table({name: list(v) if name == "n" else v for name, v in rows.items()}), path
        )
        partition = {"day": day, "late": str(late).lower()}
        files.append(DataFile(f"_staging/j/{number}.parquet", 10, path.stat().st_size, partition))
    change = {"flights": Change("replace", files, [], 60, SCHEMA)}
    assert warehouse.create_entry(
        1, Entry(1, 0, "job", "package", "job", "flights", 1e9, {}, change)
    )
    return warehouse


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ({"day": "2026-01-02"}, [2, 3]),
        ({"day": date(2026, 1, 2), "late": True}, [3]),
        ({"day": ["2026-01-01", None]}, [0, 1, 4, 5]),
        ({"day": None, "late": [True]}, [5]),
        ({"day": "2026-02-30"}, []),
        ({}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_reading_selected_partitions_lists_their_files(
    parted: Warehouse, where: dict[str, Any], numbers: list[int]
) -> None:
    assert [
        int(Path(path).stem) for path in published_files(parted, "flights", where=where)
    ] == numbers


def test_filtering_by_a_column_that_is_not_a_partition_key_is_refused(parted: Warehouse) -> None:
    with pytest.raises(ValueError, match="not parted by n, but by day, late"):
        published_files(parted, "flights", where={"n": 1})


@pytest.mark.parametrize("read", [published_files, read_arrow])
@pytest.mark.parametrize("partition", [{}, {"day": "2026-01-02"}])
def test_where_is_refused_if_any_file_is_not_partitioned_by_its_columns(
    parted: Warehouse, partition: dict[str, str | None], read: Callable[..., Any]
) -> None:
    """A later file may hold matching rows without a partition that says so: skipping it would lose
    rows.
    """
    path = "_staging/later/unparted.parquet"
    table = pa.table({"day": pa.array([date(2026, 1, 2)], pa.date32()), "n": [60], "late": [True]})
    pq.write_table(table, _made(parted, path))
    added = {"flights": Change("append", [DataFile(path, 1, 1, partition)], [], 1, SCHEMA)}
    assert parted.create_entry(
        2, Entry(2, 1, "later", "package", "later", "flights", 1e9, {}, added)
    )
    with pytest.raises(ValueError, match=r"where: the files of flights are not parted by .*late"):
        read(parted, "flights", where={"day": "2026-01-02", "late": True})


def test_where_and_version_together_select_files_of_that_version(parted: Warehouse) -> None:
    removed = [f"_staging/j/{number}.parquet" for number in range(1, 6)]
    change = {"flights": Change("partition_overwrite", [], removed, 0, SCHEMA)}
    assert parted.create_entry(
        2, Entry(2, 1, "later", "package", "later", "flights", 1e9, {}, change)
    )
    read = partial(read_arrow, parted, "flights", where={"late": True})
    assert (read(version=1).num_rows, read(version=2).num_rows, read().num_rows) == (30, 0, 0)
    named = partial(published_files, parted, "flights", where={"day": "2026-01-01"})
    assert [len(named(version=version)) for version in (1, 2, None)] == [2, 1, 1]


@pytest.mark.parametrize("value", [datetime(2026, 1, 2), 1.5, ["2026-01-01", datetime(2026, 1, 2)]])
def test_a_value_that_no_partition_can_have_is_refused(parted: Warehouse, value: Any) -> None:
    with pytest.raises(
        TypeError, match="where: day is text, a whole number, a date, true, false or None, not a "
    ):
        published_files(parted, "flights", where={"day": value})


def test_an_empty_selection_of_partitions_has_the_columns_and_types_of_the_dataset(
    parted: Warehouse,
) -> None:
    none, all_of = (
        read_arrow(parted, "flights", where=where) for where in ({"day": "2026-02-30"}, None)
    )
    assert (none.num_rows, all_of.num_rows) == (0, 60)
    assert none.schema == all_of.schema
    assert none.schema.names == ["day", "n", "late", "raw"]
    assert read_arrow(parted, "flights", to="pandas", where={"day": None})["n"].sum() == sum(
        range(40, 60)
    )


def _made(warehouse: Warehouse, path: str) -> Path:
    """The local path of a new file of ``warehouse``, whose folder exists."""
    local = Path(warehouse.storage.uri(path))
    local.parent.mkdir(parents=True)
    return local


def test_the_first_rows_follow_the_order_of_files_and_columns(
    parted: Warehouse,
) -> None:
    rows = head_rows(parted, parted.dataset("flights"), 12)
    assert [row["n"] for row in rows] == list(range(12))
    assert list(rows[11]) == ["day", "n", "late", "raw"]
    assert rows[11] == {"day": date(2026, 1, 1), "n": 11, "late": True, "raw": None}


@pytest.mark.variant
def test_the_command_prints_rows_as_text_or_json_and_bare_paths_in_a_pipe(
    parted: Warehouse,
) -> None:
    def run(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "unstuck.cli",
            "datasets",
            "flights",
            "--warehouse",
            parted.storage.uri(""),
        ]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert json.loads(run("--head", "1", "--json")) == [
        {"day": "2026-01-01", "n": 0, "late": False, "raw": None}
    ]
    assert [line.split() for line in run("--head", "2").splitlines()] == [
        ["day", "n", "late", "raw"],
        ["2026-01-01", "0", "False", "null"],
        ["2026-01-01", "1", "False", "null"],
    ]
    assert run("--files").splitlines() == published_files(parted, "flights")


@pytest.mark.variant
def test_spark_reads_only_the_files_of_selected_partitions(unstuck: Unstuck) -> None:
    rows = [{"day": day, "n": n} for n, day in enumerate(("monday", "monday", "tuesday", None))]
    unstuck.publish("visits", rows, partition_by=["day"])
    read = partial(published, unstuck.spark, unstuck.warehouse, "visits")
    assert sorted(row.n for row in read(where={"day": "monday"}).collect()) == [0, 1]
    assert [row.n for row in read(where={"day": None}).collect()] == [3]
    none = read(where={"day": "friday"})
    assert (none.collect(), none.schema) == ([], read().schema)
    with pytest.raises(ValueError, match="not parted by n, but by day"):
        read(where={"n": 1})
