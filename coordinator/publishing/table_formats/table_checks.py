"""Checks of an output that all table formats share, before it is published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.table_formats.table_writer import (
    KEYS_UNFIT,
    PARTITION_MISMATCH,
    SCHEMA_MISMATCH,
    TABLE_UNFIT,
    Candidate,
)
from unstuck.tasks.spec.schemas import difference, fields_of


def check_outside(candidate: Candidate, location: str) -> None:
    """Check that neither the table nor the warehouse is inside the other.

    Args:
        location: of the files of the table.

    Raises: PublishFailed.
    """
    home = candidate.warehouse.storage.uri("").removeprefix("file:").rstrip("/") + "/"
    table = location.rstrip("/") + "/"
    if table.startswith(home) or home.startswith(table):
        why = "it is inside the warehouse, or the warehouse is inside it"
        raise candidate.refused(TABLE_UNFIT, why)


def check_columns(what: str, table_schema: str, schema: str) -> None:
    """Check that the output has the columns of the table, in any order.

    Columns that the table requires must have no nulls.

    Args:
        table_schema, schema: of the table and of the output, in Spark's JSON of a struct.

    Raises: PublishFailed.
    """
    if _types(table_schema) != _types(schema):
        raise PublishFailed(
            SCHEMA_MISMATCH,
            f"{what}: its columns differ: "
            f"{difference(fields_of(table_schema), fields_of(schema))} (the table; this job). "
            "Make the columns equal, as columns: does, or change the table",
        )
    required = {field["name"] for field in _fields(table_schema) if not field["nullable"]}
    nullable = {field["name"] for field in _fields(schema) if field["nullable"]}
    both = sorted(required & nullable)
    if both:
        why = f"its columns {', '.join(both)} are never null, the output's may be"
        raise PublishFailed(SCHEMA_MISMATCH, f"{what}: {why}")


def _fields(schema: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def _types(schema: str) -> dict[str, str]:
    """Return the columns with their types, without nullability and order.

    Files of a table are read by name.
    """
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields_of(schema)}


def check_partition_columns(
    what: str, table_columns: Sequence[str], partition_by: Sequence[str]
) -> None:
    """Check that the table and the output have the same partition columns.

    Raises: PublishFailed.
    """
    if [*table_columns] != [*partition_by]:
        table_by, output_by = (
            ", ".join(columns) or "no column" for columns in (table_columns, partition_by)
        )
        raise PublishFailed(
            PARTITION_MISMATCH,
            f"{what}: it is partitioned by {table_by}, and the output by {output_by}",
        )


def check_keys_exist(candidate: Candidate) -> None:
    """Check that ``keys:`` names columns of the output. Raises: PublishFailed."""
    absent = [key for key in candidate.spec.keys if key not in _types(candidate.output.schema)]
    if absent:
        why = f"keys: names {', '.join(absent)}, which is no column of it"
        raise candidate.refused(KEYS_UNFIT, why)
