"""Delta tables in specs, messages and views."""

from __future__ import annotations

from collections.abc import Collection

from unstuck.tasks.settings import without_user
from unstuck.tasks.spec.table_formats.sql_text import duckdb_text, hadoop_uri, spark_text

_PLACES = ("/", "file:///", "s3://")


class DeltaFormat:
    """The format of Delta Lake. A table is a folder."""

    name = "delta"
    title = "Delta"
    package = "deltalake"
    extra = "delta"
    modes: Collection[str] = ("replace", "append", "partition_overwrite", "merge")
    readers = "Spark, Polars (read_delta), DuckDB (delta_scan) or deltalake"
    restore_hint = "RESTORE TABLE in Spark, or DeltaTable.restore of deltalake"
    compact_hint = "OPTIMIZE in Spark, or DeltaTable.optimize of deltalake"

    def place_of(self, path: str) -> str:
        if not path.startswith(_PLACES) or ".." in path.split("/"):
            raise ValueError(
                f"path: {path!r} must be an absolute path without .., file:///… or s3://…"
            )
        without_user(path)
        place = path
        if not path.startswith("s3://"):
            parts = path.removeprefix("file:").split("/")
            place = "/" + "/".join(part for part in parts if part not in ("", "."))
        place = place.rstrip("/")
        bucket, _, key = place.removeprefix("s3://").partition("/")
        if not key or (path.startswith("s3://") and not bucket):
            raise ValueError(
                f"path: {path!r} names no table; expected a folder below / or below a bucket"
            )
        return place

    def in_duckdb(self, table: str) -> str:
        return f"SELECT * FROM delta_scan({duckdb_text(table)})"

    def in_spark(self, table: str) -> str:
        return f"USING delta OPTIONS (path {spark_text(hadoop_uri(table))})"
