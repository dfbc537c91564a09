"""Which files of a folder count as staged output: its own data files, and not what a writer left
beside them.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from unstuck.tasks.frames.output import describe, stage_table
from unstuck.tasks.frames.partitions import collect_parts
from unstuck.tasks.warehouse.files import Files

FOLDER = "_staging/job/group/1-n-c/rows"
# What a committed or a killed write of Spark leaves in its folder.
LEFT_BEHIND = (
    "_temporary/0/task_1/part-00007.parquet",
    "_temporary/0/_temporary/attempt_1/part-00008.parquet",
    ".spark-staging/part-00009.parquet",
    "_SUCCESS",
    ".part-00000.parquet.crc",
    "_part-00001.parquet",
)


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


def test_leftover_files_of_a_writer_are_not_rows_of_an_output(files: Files) -> None:
    staged = stage_table(files, FOLDER, pa.table({"n": [1, 2, 3]}))
    data = files.read(staged.files[0].path)
    for name in LEFT_BEHIND:
        files.write_durable(f"{FOLDER}/{name}", data)
    assert describe(files, FOLDER) == staged


def test_leftovers_of_a_partitioned_write_are_not_collected(files: Files) -> None:
    rows = stage_table(files, f"{FOLDER}-source", pa.table({"n": [1, 2, 3]})).files[0]
    data, source = files.read(rows.path), f"{FOLDER}/_parted"
    for name in (
        "__unstuck_partition=a/part-1.parquet",
        "__unstuck_partition=b/part-1.parquet",
        *LEFT_BEHIND,
    ):
        files.write_durable(f"{source}/{name}", data)
    assert collect_parts(files, source, FOLDER)
    assert [file.rows for file in describe(files, FOLDER).files] == [3, 3]
    assert [path for path in files.paths(FOLDER) if "_parted" in path] == []
