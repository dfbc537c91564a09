"""Rows of many files: they are written in few parts, in one pass, and none of a file that is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck.tasks.formats import rows
from unstuck.tasks.formats.rows import Parts
from unstuck.tasks.warehouse.files import Files


class Asked:
    """A table that counts how often its size is asked for."""

    count = 0

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def nbytes(self) -> int:
        Asked.count += 1
        return int(self._table.nbytes)

    def __len__(self) -> int:
        return len(self._table)


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": values})


def written(parts: Parts) -> list[list[int]]:
    return [pq.read_table(path)["n"].to_pylist() for path in parts.written()]


def test_small_files_share_a_part_and_each_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asked, "count", 0)
    written_: list[Any] = []
    parts = Parts(Files(str(tmp_path)), "in")
    monkeypatch.setattr(parts, "_write", lambda tables: written_.append(tables) or {})
    for n in range(1000):
        parts.add(Asked(numbers(n)))
        parts.keep()
    parts.written()
    assert (len(written_), len(written_[0])) == (1, 1000)
    assert Asked.count == 1000


def test_a_large_file_is_written_in_parts_and_none_of_them_counts_if_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_PART", 20)
    parts = Parts(Files(str(tmp_path)), "in")
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
