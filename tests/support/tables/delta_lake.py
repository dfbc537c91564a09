"""A warehouse with a Delta table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.tables.lake import Lake, Rows, schema


class DeltaLake(Lake):
    format = "delta"

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.path)

    @property
    def commits(self) -> int:
        return DeltaTable(self.path).version() + 1

    def arrow(self, commit: int | None = None) -> pa.Table:
        version = None if commit is None else commit - 1
        return DeltaTable(self.path, version=version).to_pyarrow_table()

    def polars(self) -> pl.DataFrame:
        return pl.read_delta(self.path)

    def elsewhere(self) -> Lake:
        return replace(self, path=f"{self.path}_elsewhere")

    def write(self, rows: Rows, partition_by: Sequence[str] = ()) -> None:
        table = pa.Table.from_pylist([*rows], schema())
        write_deltalake(self.path, table, mode="append", partition_by=[*partition_by] or None)

    def add_column(self) -> None:
        DeltaTable(self.path).alter.add_columns(Field("more", PrimitiveType("long")))

    def remove_column(self) -> None:
        table = DeltaTable(self.path)
        table.restore(table.version() - 1)

    def compact(self) -> None:
        DeltaTable(self.path).optimize.compact()
