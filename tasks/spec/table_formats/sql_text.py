"""Quote names, texts and addresses for the SQL of DuckDB and of Spark."""

from __future__ import annotations


def duckdb_name(name: str) -> str:
    """Return an identifier of DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_text(value: str) -> str:
    """Return a string literal of DuckDB."""
    return "'" + value.replace("'", "''") + "'"


def spark_text(value: str) -> str:
    """Return a string literal of Spark."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def hadoop_uri(uri: str) -> str:
    """Return an address as Spark's connector to S3 expects it."""
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri
