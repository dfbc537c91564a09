"""Makes the commit of a log entry in an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot

from unstuck.coordinator.publishing.table_formats.iceberg.catalog import (
    Overtaken,
    create_table,
    exact_transaction,
)
from unstuck.coordinator.publishing.table_formats.iceberg.files import (
    AddedFiles,
    Exchange,
    current_files,
    is_local,
    partition_of,
    sync_locations,
)
from unstuck.coordinator.publishing.table_formats.iceberg.merge import merged
from unstuck.coordinator.publishing.table_formats.iceberg.types import iceberg_schema
from unstuck.coordinator.publishing.table_formats.table_writer import TableCommit
from unstuck.tasks.warehouse.marker import are_named

_DATASET, _VERSION = "unstuck.dataset", "unstuck.version"  # properties of a snapshot


def newest_entry(table: Table, app_id: str) -> int:
    """Return the newest log entry of ``app_id`` that the table has; 0 if it has none."""
    by_snapshot = (_version_in(snapshot, app_id) for snapshot in table.metadata.snapshots)
    return max(int(table.properties.get(app_id, 0)), *by_snapshot, 0)


def _version_in(snapshot: Snapshot, app_id: str) -> int:
    summary = snapshot.summary
    if summary is None or summary[_DATASET] != app_id:
        return 0
    return int(summary[_VERSION] or 0)


def commit_entry(commit: TableCommit, table: Table | None) -> bool:
    """Commit once, if ``table`` is unchanged. Return False if another writer came first."""
    if table is None:
        schema = iceberg_schema(commit.change.schema)
        table = create_table(commit.into.path, schema, commit.into.partition_by)
        if table is None:
            return False
    exchange = _exchange(commit, table)
    transaction = exact_transaction(table)
    properties = {commit.app_id: str(commit.entry.n)}
    if table.name_mapping() is None:  # the staged files name their columns, without ids
        mapping = table.schema().name_mapping.model_dump_json()
        properties[TableProperties.DEFAULT_NAME_MAPPING] = mapping
    transaction.set_properties(properties)
    summary = {**commit.properties, _DATASET: commit.app_id}
    update = transaction.update_snapshot(snapshot_properties=summary)
    with update.overwrite() if exchange.removed else update.fast_append() as snapshot:
        for file in exchange.removed:
            snapshot.delete_data_file(file)
        for file in exchange.added:
            snapshot.append_data_file(file)
    try:
        transaction.commit_transaction()
    except Overtaken:
        return False
    return True


def _exchange(commit: TableCommit, table: Table) -> Exchange:
    """Copy the rows of a change into the table. Return the files to add and to remove."""
    change, files = commit.change, commit.warehouse.storage
    target = AddedFiles(table, commit.app_id, commit.entry.n)
    staged = [file for file in change.added if file.rows]
    added = [target.add(files, file) for file in staged]
    match change.mode:
        case "replace":
            return Exchange(added, current_files(table))
        case "partition_overwrite":
            is_replaced = are_named(change.replaces)
            present = current_files(table)
            return Exchange(
                added,
                [file for file in present if is_replaced(partition_of(table.metadata, file))],
            )
        case "merge":
            kept = merged(files, staged, commit.into.keys, table, target)
            return Exchange([*added, *kept.added], kept.removed)
    return Exchange(added, [])


def sync_newest(table: Table, app_id: str) -> None:
    """Sync the newest commit of ``app_id`` to disk, if the table is on a local one.

    Raises: OSError.
    """
    if is_local(table.location()):
        sync_locations(
            [table.metadata_location, *_locations(table, newest_entry(table, app_id), app_id)]
        )


def _locations(table: Table, n: int, app_id: str) -> Iterator[str]:
    """Yield the files of the snapshot of log entry ``n``, unless it has expired."""
    for snapshot in table.metadata.snapshots:
        if _version_in(snapshot, app_id) != n:
            continue
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                yield manifest.manifest_path
                entries = manifest.fetch_manifest_entry(table.io)
                yield from (entry.data_file.file_path for entry in entries)
