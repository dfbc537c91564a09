"""The values that a fork collects from the files of an output or of a published dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck.tasks.errors import ForkValuesInvalid
from unstuck.tasks.frames.output import collect, stage
from unstuck.tasks.spec.group import MAX_JOB_BYTES, ForkFrom
from unstuck.tasks.spec.work_order import Collect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput

COLUMNS = [
    {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("n", "region")
]
SCHEMA = json.dumps({"type": "struct", "fields": COLUMNS})


def dataset(folder: Path, *tables: Any) -> StagedOutput:
    files = []
    for number, table in enumerate(tables):
        path = folder / f"{number}.parquet"
        pq.write_table(table, path)
        files.append(DataFile(path.name, table.num_rows, path.stat().st_size))
    return StagedOutput(files, sum(file.rows for file in files), SCHEMA)


def test_a_file_older_than_the_column_has_nulls_in_it(tmp_path: Path) -> None:
    made = dataset(tmp_path, pa.table({"n": [1, 2]}), pa.table({"n": [3], "region": [7]}))
    wanted = Collect(output="events", column="region", distinct=True)
    assert collect(Files(str(tmp_path)), made, wanted, MAX_JOB_BYTES) == [7]
    with pytest.raises(ForkValuesInvalid, match=r"events\.region has a null"):
        collect(
            Files(str(tmp_path)), made, wanted.model_copy(update={"distinct": False}), MAX_JOB_BYTES
        )


@pytest.mark.parametrize("name", ["customer id", "a.b", "a.b c", "1", "`q`"])
def test_a_fork_may_use_a_column_with_any_name(tmp_path: Path, name: str) -> None:
    source = ForkFrom.model_validate({"from": f"events.{name}"})
    assert (source.output, source.column) == ("events", name)
    staged = stage(Files(str(tmp_path)), "out", pa.table({"a": [{"b": 1}, {"b": 2}], name: [7, 8]}))
    wanted = Collect(output=source.output, column=source.column)
    assert collect(Files(str(tmp_path)), staged, wanted, MAX_JOB_BYTES) == [7, 8]


def test_a_file_that_is_not_parquet_is_an_error_of_the_values(tmp_path: Path) -> None:
    made = dataset(tmp_path, pa.table({"n": [1], "region": [7]}))
    (tmp_path / "0.parquet").write_bytes(b"not a table")
    with pytest.raises(ForkValuesInvalid, match="a value of the column region cannot be read"):
        collect(
            Files(str(tmp_path)), made, Collect(output="events", column="region"), MAX_JOB_BYTES
        )
