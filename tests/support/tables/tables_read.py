"""Tables that a test makes, and reads again and again as other programs do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import IdentityTransform


class TableRead(ABC):
    """A table with one commit.

    Attributes:
        output: how a job publishes into it.
    """

    output: dict[str, Any]

    @abstractmethod
    def refresh(self) -> int:
        """Look for the newest commit. Returns how many have followed the first one."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the commit that was found last."""


class DeltaRead(TableRead):
    def __init__(
        self, path: str, rows: pa.Table, partition_by: Sequence[str], storage: dict[str, str]
    ) -> None:
        write_deltalake(path, rows, partition_by=[*partition_by] or None, storage_options=storage)
        self.table = DeltaTable(path, storage_options=storage)
        self.output = {"format": "delta", "path": path}

    def refresh(self) -> int:
        self.table.update_incremental()
        return self.table.version()

    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pyarrow_table().to_pylist()


class IcebergRead(TableRead):
    def __init__(
        self, catalog: Catalog, path: str, rows: pa.Table, partition_by: Sequence[str]
    ) -> None:
        """``path``: as in a spec."""
        identifier = tuple(path.split(".")[1:])
        catalog.create_namespace_if_not_exists(identifier[:-1])
        self.table = catalog.create_table(identifier, rows.schema)
        with self.table.update_spec() as update:
            for column in partition_by:
                update.add_field(column, IdentityTransform(), column)
        self.table.append(rows)
        self.output = {"format": "iceberg", "path": path}

    def refresh(self) -> int:
        self.table.refresh()
        return len(self.table.metadata.snapshots) - 1

    def rows(self) -> list[dict[str, Any]]:
        return self.table.scan().to_arrow().to_pylist()
