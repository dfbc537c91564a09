"""Checks whether an output can be written into its Iceberg table, before the log entry."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.table_formats.iceberg.catalog import check_creation
from unstuck.coordinator.publishing.table_formats.iceberg.files import is_local, partition_columns
from unstuck.coordinator.publishing.table_formats.iceberg.merge import check_keys
from unstuck.coordinator.publishing.table_formats.iceberg.types import (
    NoSuchType,
    iceberg_schema,
    spark_schema,
)
from unstuck.coordinator.publishing.table_formats.table_checks import (
    check_columns,
    check_outside,
    check_partition_columns,
)
from unstuck.coordinator.publishing.table_formats.table_writer import (
    SCHEMA_MISMATCH,
    TABLE_UNFIT,
    Candidate,
)
from unstuck.tasks.settings import plain_path

MAX_FORMAT_VERSION = 2


def check_output(candidate: Candidate, table: Table | None) -> None:
    """Check all that could stop the commit later. Raises: PublishFailed."""
    spec = candidate.spec
    try:
        schema = iceberg_schema(candidate.output.schema)
    except NoSuchType as error:
        raise candidate.refused(SCHEMA_MISMATCH, f"Iceberg has no such type: {error}") from error
    if spec.mode == "merge":
        check_keys(candidate)
    if table is None:
        location = check_creation(candidate.path, schema, list(spec.partition_by))
        check_outside(candidate, plain_path(location))
        return
    check_outside(candidate, plain_path(table.location()))
    schema_text = candidate.output.schema
    check_table(candidate.what, table, schema_text, spec.mode, spec.partition_by)
    _probe(table)  # after the entry, the job ends only if the table can be written


def check_table(
    what: str, table: Table, schema: str, mode: str, partition_by: Sequence[str]
) -> None:
    """Check that rows with ``schema`` fit the table. Raises: PublishFailed."""
    odd = [*_unsupported_columns(table), *_unsupported_files(table, mode)]
    if odd:
        raise PublishFailed(
            TABLE_UNFIT,
            f"{what}: it requires features that Unstuck does not support: {', '.join(odd)}",
        )
    check_columns(what, spark_schema(table.schema()), spark_schema(iceberg_schema(schema)))
    check_partition_columns(what, partition_columns(table.schema(), table.spec()), partition_by)


def _unsupported_columns(table: Table) -> Iterator[str]:
    """Yield the demands of a table on its writers that Unstuck does not meet."""
    if table.metadata.format_version > MAX_FORMAT_VERSION:
        yield f"format version {table.metadata.format_version}"
    if any(_has_required_part(field.field_type) for field in table.schema().fields):
        yield "columns with parts that are never null"
    mapping = table.name_mapping()
    if mapping is not None:
        by_name = dict(_paths(mapping))
        lacking = [
            name for name, id_ in _paths(table.schema().name_mapping) if by_name.get(name) != id_
        ]
        if lacking:
            yield f"a name mapping without {', '.join(lacking)}"


def _unsupported_files(table: Table, mode: str) -> Iterator[str]:
    """Yield the properties of the files of a table with which ``mode`` cannot replace rows."""
    snapshot = table.current_snapshot()
    if mode == "append" or snapshot is None:
        return
    manifests = [
        manifest
        for manifest in snapshot.manifests(table.io)
        if manifest.has_added_files() or manifest.has_existing_files()
    ]
    if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
        yield "deleted rows in files of their own (merge-on-read)"
    spec = table.metadata.default_spec_id
    if mode != "replace" and any(manifest.partition_spec_id != spec for manifest in manifests):
        yield "files of an older partitioning"


def _has_required_part(kind: IcebergType) -> bool:
    """Return whether a part of a column, other than a key of a map, must not be null."""
    match kind:
        case StructType():
            return any(
                field.required or _has_required_part(field.field_type) for field in kind.fields
            )
        case ListType():
            return kind.element_required or _has_required_part(kind.element_type)
        case MapType():
            return kind.value_required or _has_required_part(kind.value_type)
    return False


def _paths(fields: Iterable[MappedField], above: str = "") -> Iterator[tuple[str, int | None]]:
    """Yield the id of each name in a name mapping, also of parts of columns."""
    for field in fields:
        for name in field.names:
            yield f"{above}{name}", field.field_id
            yield from _paths(field.fields, f"{above}{name}.")


def _probe(table: Table) -> None:
    """Write a temporary file into the folder of a local table. Raises: OSError.

    An object store is not probed: some catalogs allow no files but those of tables, and no deletes.
    """
    if is_local(table.location()):
        folder = plain_path(table.location_provider().data_path)
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
