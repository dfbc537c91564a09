"""Rows of many files: they are written in few parts, in one pass, and none of a file that is
dropped.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck.tasks.formats.rows import Parts
from unstuck.tasks.warehouse.files import Files


class Empty:
    """A table without rows that counts how often its size is asked for."""

    asked = 0

    @property
    def nbytes(self) -> int:
        Empty.asked += 1
        return 8

    def __len__(self) -> int:
        return 0


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": values})


def written(parts: Parts) -> list[list[int]]:
    return [pq.read_table(path)["n"].to_pylist() for path in parts.written()]


def test_small_files_share_a_part(tmp_path: Path) -> None:
    parts = Parts(Files(str(tmp_path)), "in")
    for n in range(10):
        parts.add(numbers(n))
        parts.keep()
    assert written(parts) == [[*range(10)]]


def test_the_size_of_each_table_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Empty, "asked", 0)
    parts = Parts(Files(str(tmp_path)), "in")
    for _ in range(1000):
        parts.add(Empty())
        parts.keep()
    assert parts.written() == {}
    assert Empty.asked == 1000


def test_a_large_file_is_written_in_parts_that_are_dropped_together(
    tmp_path: Path,
) -> None:
    parts = Parts(Files(str(tmp_path)), "in", part_bytes=20)
    parts.add(numbers(1))
    parts.keep()
    for _ in range(5):
        parts.add(numbers(7, 7))
    parts.drop()
    parts.add(numbers(2))
    parts.keep()
    for n in (3, 4):
        parts.add(numbers(n, n, n))
    parts.keep()
    assert sorted(n for part in written(parts) for n in part) == [1, 2, 3, 3, 3, 4, 4, 4]
