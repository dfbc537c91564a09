"""Writes outputs into Iceberg tables.

A commit records its log entry in the properties of its snapshot and of the table, so a repeat finds
it, also after the snapshot has expired.
"""
# pyiceberg is an extra: what needs it is imported when it is used.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unstuck.coordinator.errors import TableTrouble
from unstuck.coordinator.publishing.table_formats.table_writer import Candidate, TableCommit
from unstuck.tasks.host import how_to_install
from unstuck.tasks.warehouse.marker import DataFile


class IcebergWriter:
    """Writes Iceberg tables with the package pyiceberg."""

    def open(self, path: str) -> Any | None:
        try:
            from unstuck.coordinator.publishing.table_formats.iceberg.catalog import open_table
        except ImportError as error:
            raise TableTrouble(
                f"this coordinator cannot write Iceberg tables ({error}). "
                f"{how_to_install('iceberg')}"
            ) from error
        return open_table(path)

    def newest_entry(self, table: Any, app_id: str) -> int:
        from unstuck.coordinator.publishing.table_formats.iceberg.commit import newest_entry

        return newest_entry(table, app_id)

    def check(self, candidate: Candidate, table: Any | None) -> None:
        from unstuck.coordinator.publishing.table_formats.iceberg.checks import check_output

        check_output(candidate, table)

    def check_table(
        self, what: str, table: Any, schema: str, mode: str, partition_by: Sequence[str]
    ) -> None:
        from unstuck.coordinator.publishing.table_formats.iceberg.checks import check_table

        check_table(what, table, schema, mode, partition_by)

    def counted_files(self, table: Any) -> Sequence[DataFile]:
        from unstuck.coordinator.publishing.table_formats.iceberg.files import counted_files

        return counted_files(table)

    def commit(self, commit: TableCommit, table: Any | None) -> bool:
        from unstuck.coordinator.publishing.table_formats.iceberg.commit import commit_entry

        return commit_entry(commit, table)

    def sync(self, path: str, table: Any, app_id: str) -> None:
        from unstuck.coordinator.publishing.table_formats.iceberg.commit import sync_newest

        sync_newest(table, app_id)
