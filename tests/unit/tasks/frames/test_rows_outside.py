"""Rows of partitions that ``partitions:`` does not name: the error counts them, and names
partitions and a row.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck.tasks.errors import RowsOutside
from unstuck.tasks.frames.partitions import check_named
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput


def staged(folder: Path, *days: str) -> StagedOutput:
    """A file of two rows for each of ``days``, in this order."""
    made = []
    for number, day in enumerate(days):
        path = f"part-{number}.parquet"
        pq.write_table(
            pa.table({"day": [day, day], "n": [2 * number, 2 * number + 1]}), folder / path
        )
        made.append(DataFile(path, 2, (folder / path).stat().st_size, {"day": day}))
    return StagedOutput(made, 2 * len(made), "")


def refusal(folder: Path, *days: str) -> str:
    with pytest.raises(RowsOutside) as caught:
        check_named(Files(str(folder)), "flights", staged(folder, *days), {"day": ["04"]})
    return str(caught.value)


def test_all_files_of_a_partition_count(tmp_path: Path) -> None:
    said = refusal(tmp_path, "02", "04", "03", "02", "02")
    assert (
        "8 of 10 rows of flights are of partitions that partitions: does not name: day=02 (6 "
        "rows), "
    ) in said
    assert "day=03 (2 rows). The first one: day=02, n=0." in said


def test_the_first_ten_partitions_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    days = [f"{day:02}" for day in range(30, 17, -1)]
    said = refusal(tmp_path, *days, *days)
    named = [f"day={day} (4 rows)" for day in range(18, 28)]
    assert (
        "52 of 52 rows of flights are of partitions that partitions: does not name: "
        f"{', '.join(named)}, "
    ) in said
    assert "and 3 more. The first one: day=18, n=24." in said


def test_rows_only_in_listed_partitions_are_accepted(tmp_path: Path) -> None:
    check_named(
        Files(str(tmp_path)), "flights", staged(tmp_path, "04", "04"), {"day": ["04", "05"]}
    )
