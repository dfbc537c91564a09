"""A warehouse with an Iceberg table beside it, in a catalog in SQLite or behind REST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from tests.support.tables.lake import Lake, Rows, schema


@dataclass
class IcebergLake(Lake):
    """The table and its catalog, which is another client than that of the publisher."""

    catalog: Catalog = field(kw_only=True)
    format = "iceberg"

    @property
    def identifier(self) -> tuple[str, ...]:
        return tuple(self.path.split(".")[1:])

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.identifier)

    @property
    def exists(self) -> bool:
        return self.catalog.table_exists(self.identifier)

    @property
    def commits(self) -> int:
        return len(self.table.metadata.snapshots)

    def arrow(self, commit: int | None = None) -> pa.Table:
        table = self.table
        snapshot = None if commit is None else table.metadata.snapshots[commit - 1].snapshot_id
        return table.scan(snapshot_id=snapshot).to_arrow()

    def polars(self) -> pl.DataFrame:
        return pl.scan_iceberg(self.table).collect()

    def elsewhere(self) -> Lake:
        return replace(self, path=f"{self.path}_elsewhere")

    def write(self, rows: Rows, partition_by: Sequence[str] = ()) -> None:
        if not self.exists:
            self.catalog.create_namespace_if_not_exists(self.identifier[:-1])
            table = self.catalog.create_table(self.identifier, schema())
            with table.update_spec() as update:
                for column in partition_by:
                    update.add_field(column, IdentityTransform(), column)
        self.table.append(pa.Table.from_pylist([*rows], schema()))

    def add_column(self) -> None:
        with self.table.update_schema() as update:
            update.add_column("more", LongType())

    def remove_column(self) -> None:
        with self.table.update_schema() as update:
            update.delete_column("more")

    def compact(self) -> None:
        table = self.table
        table.overwrite(table.scan().to_arrow())
