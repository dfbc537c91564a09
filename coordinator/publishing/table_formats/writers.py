"""The writers of tables, by the names of their formats. A new format adds one line here."""

from __future__ import annotations

from collections.abc import Mapping

from unstuck.coordinator.publishing.table_formats.delta import DeltaWriter
from unstuck.coordinator.publishing.table_formats.iceberg.writer import IcebergWriter
from unstuck.coordinator.publishing.table_formats.table_writer import TableWriter
from unstuck.tasks.spec.table_formats.delta import DeltaFormat
from unstuck.tasks.spec.table_formats.iceberg import IcebergFormat

TABLE_WRITERS: Mapping[str, TableWriter] = {
    DeltaFormat.name: DeltaWriter(),
    IcebergFormat.name: IcebergWriter(),
}
