"""The data files of an Iceberg table: copies of staged files, with their partitions and metrics."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from unstuck.coordinator.publishing.table_formats.local_files import place_file, sync
from unstuck.tasks.settings import plain_path
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile

Partition = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The data files that a commit adds and removes."""

    added: list[IcebergFile]
    removed: list[IcebergFile]


def current_files(table: Table) -> list[IcebergFile]:
    """Return the data files of the newest snapshot."""
    return [task.file for task in table.scan().plan_files()]


def counted_files(table: Table) -> list[DataFile]:
    """Return the data files of the newest snapshot with their rows and partitions."""
    above = f"{table.location()}/"
    return [
        DataFile(
            file.file_path.removeprefix(above),
            file.record_count,
            file.file_size_in_bytes,
            partition_of(table.metadata, file),
        )
        for file in current_files(table)
    ]


def partition_columns(schema: Schema, spec: PartitionSpec) -> list[str]:
    """Return the partition columns of ``spec``.

    A column with a transform is returned as text such as ``day(at)``, which equals no column.
    """
    columns = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id) or field.name
        is_plain = isinstance(field.transform, IdentityTransform)
        columns.append(column if is_plain else f"{field.transform}({column})")
    return columns


def partition_of(metadata: TableMetadata, file: IcebergFile) -> dict[str, str | None]:
    """Return the values of a file's partition as text, as markers have them."""
    columns = partition_columns(metadata.schema(), metadata.spec())
    kinds = metadata.spec().partition_type(metadata.schema()).fields
    return {
        column: None
        if value is None
        else IdentityTransform().to_human_string(kind.field_type, value)
        for column, kind, value in zip(columns, kinds, _values(file.partition), strict=True)
    }


def _values(record: Record) -> list[Any]:
    return [record[position] for position in range(len(record))]


def _record(metadata: TableMetadata, partition: Partition) -> Record:
    columns = partition_columns(metadata.schema(), metadata.spec())
    kinds = metadata.spec().partition_type(metadata.schema()).fields
    values = []
    for column, kind in zip(columns, kinds, strict=True):
        text = partition[column]
        values.append(None if text is None else literal(text).to(kind.field_type).value)
    return Record(*values)


class AddedFiles:
    """Puts the data files of one commit into a table."""

    def __init__(self, table: Table, app_id: str, n: int) -> None:
        """Args: ``app_id``, ``n``: the dataset and the log entry of the commit."""
        self._table = table
        self._name = f"{app_id}/{n}"

    def location_of(self, path: str) -> str:
        """Return where a file of this commit is stored.

        Each commit has unique paths. Iceberg removes the files of expired snapshots by their path,
        so a path must not be reused.
        """
        digest = hashlib.sha256(f"{self._name}/{path}".encode()).hexdigest()[:32]
        return self._table.location_provider().new_data_location(f"unstuck-{digest}.parquet")

    def add(self, files: Files, staged: DataFile) -> IcebergFile:
        """Copy a staged file into the table, and sync it. Raises: OSError."""
        location = self.location_of(staged.path)
        if is_local(location):
            place_file(files, staged.path, plain_path(location))
        elif not self._has(location, staged.bytes):
            with self._table.io.new_output(location).create(overwrite=True) as output:
                output.write(files.read(staged.path))
        files.answered()
        with files.open(staged.path) as source:
            footer = pq.read_metadata(source)
        return self._data_file(location, footer, staged.bytes, staged.partition)

    def _has(self, location: str, size: int) -> bool:
        stored = self._table.io.new_input(location)
        return stored.exists() and len(stored) == size

    def write(self, rows: Any, partition: Partition) -> IcebergFile:
        """Write an Arrow table as a file.

        Each try has a unique path: two publishers of one entry may write different bytes, and the
        first may have committed its file already.
        """
        location = self.location_of(uuid.uuid4().hex)
        output = self._table.io.new_output(location)
        with output.create(overwrite=True) as stream:
            pq.write_table(rows, stream)
        written = output.to_input_file()
        with written.open() as source:
            footer = pq.read_metadata(source)
        return self._data_file(location, footer, len(written), partition)

    def _data_file(
        self, location: str, footer: Any, size: int, partition: Partition
    ) -> IcebergFile:
        metadata = self._table.metadata
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(metadata.schema(), metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(metadata.schema()),
        )
        file = IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=_record(metadata, partition),
            file_size_in_bytes=size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = metadata.default_spec_id
        return file


def is_local(location: str) -> bool:
    """Return whether a location is on a file system of this host."""
    return location.startswith(("/", "file:"))


def sync_locations(locations: Iterable[str]) -> None:
    """Sync local files and their folders to disk, since pyiceberg does not. Raises: OSError."""
    paths = [plain_path(location) for location in locations if is_local(location)]
    for path in paths:
        sync(path)
    for folder in sorted({os.path.dirname(path) for path in paths}):
        sync(folder)
