"""Iceberg tables in specs, messages and views."""

from __future__ import annotations

import re
from collections.abc import Collection

from unstuck.tasks.spec.table_formats.sql_text import duckdb_name
from unstuck.tasks.spec.types import quoted

_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_PLACE = re.compile(rf"{_PART}(?:\.{_PART}){{2,}}")


class IcebergFormat:
    """The format of Apache Iceberg. A table is a name in a catalog."""

    name = "iceberg"
    title = "Iceberg"
    package = "pyiceberg"
    extra = "iceberg"
    modes: Collection[str] = ("replace", "append", "partition_overwrite", "merge")
    readers = "Spark, Polars (scan_iceberg), DuckDB (ATTACH … TYPE ICEBERG) or pyiceberg"
    restore_hint = "CALL system.rollback_to_snapshot in Spark, or manage_snapshots of pyiceberg"
    compact_hint = "CALL system.rewrite_data_files in Spark"

    def place_of(self, path: str) -> str:
        if _PLACE.fullmatch(path) is None:
            raise ValueError(
                f"path: {path!r} names no Iceberg table; expected CATALOG.NAMESPACE.TABLE, such as "
                "prod.lake.flights, with a catalog that the coordinators have configured"
            )
        return path

    def in_duckdb(self, table: str) -> str:
        catalog, *namespace, name = table.split(".")
        parts = (catalog, ".".join(namespace), name)
        return f"SELECT * FROM {'.'.join(map(duckdb_name, parts))}"

    def in_spark(self, table: str) -> str:
        return f"AS SELECT * FROM {'.'.join(map(quoted, table.split('.')))}"
