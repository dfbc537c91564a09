"""A published dataset, and one of its versions, as users see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from unstuck.read_model.record_fields import from_record
from unstuck.tasks.json_fields import Time
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.spec.table_formats.registry import table_title
from unstuck.tasks.warehouse.log_entry import DatasetState, Entry
from unstuck.tasks.warehouse.marker import Checkpoint, DataFile


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a dataset.

    Attributes:
        name: of the column.
        type: as in Spark's JSON.
    """

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A dataset at one version.

    Attributes:
        dataset: its name.
        version: of the warehouse that changed it last.
        rows: number of its rows.
        job: id of the job that changed it last.
        job_name: name of that job.
        owner: name of the job that owns it; None if no job has published it.
        shared_with: names of other jobs that may publish it, or patterns.
        files: number of files.
        bytes: size of all files.
        many_small: number of files if they are so many and small that readers slow down; else 0.
        published_at: when it was changed last.
        warehouse: address of its warehouse.
        columns: its columns.
        format: of its table, or parquet if its rows are in the warehouse.
        table: path of its table; None if its rows are in the warehouse.
        stream: position after its last load from a stream.
        paths: paths of its files, if they were requested.
    """

    dataset: str
    version: int
    rows: int
    job: str
    job_name: str
    owner: str | None
    shared_with: Sequence[str]
    files: int
    bytes: int
    many_small: int
    published_at: Time
    warehouse: str
    columns: tuple[Column, ...]
    format: str
    table: str | None
    stream: Checkpoint | None
    paths: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, name: str, state: DatasetState, warehouse: str, paths: tuple[str, ...] | None = None
    ) -> DatasetInfo:
        """Return the dataset ``name`` as it is in ``state``."""
        owner = state.owner
        return from_record(
            cls,
            state,
            dataset=name,
            version=state.changed,
            owner=None if owner is None else owner.job_name,
            shared_with=[] if owner is None else owner.shared_with,
            files=len(state.files),
            bytes=bytes_of(state.files),
            published_at=state.at,
            warehouse=warehouse,
            columns=columns_of(state),
            table=None if state.table is None else state.table.path,
            stream=state.checkpoint,
            paths=paths,
        )

    @property
    def table_title(self) -> str:
        """The table in words; empty if its rows are in the warehouse."""
        return "" if self.table is None else table_title(self.format, self.table)


@dataclass(frozen=True, kw_only=True)
class DatasetVersion:
    """One version of a dataset, and where its rows came from.

    Attributes:
        version: number of the version of the warehouse.
        mode: how it changed the dataset, such as ``append``.
        rows: number of added rows.
        files: number of added files.
        replaced_files: number of removed files.
        replaced_partitions: partitions whose rows were replaced.
        bytes: size of the added files.
        published_at: when it was published.
        job: id of the job that published it.
        job_name: name of that job.
        taken_from: name of the job that owned the dataset before, if this version changed the
            owner; else empty.
        params: parameters of the job.
        inputs: by dataset, the versions that the rows were made from.
        code: digest of the code of the steps, by group.
        stream: position after it, if its rows came from a stream.
        made_on: versions of Python and Spark.
        added: the added files.
    """

    version: int
    mode: str
    rows: int
    files: int
    replaced_files: int
    replaced_partitions: Replaced | None
    bytes: int
    published_at: Time
    job: str
    job_name: str
    taken_from: str
    params: Mapping[str, Any]
    inputs: Mapping[str, list[int]]
    code: Mapping[str, str]
    stream: Checkpoint | None
    made_on: list[str]
    added: Annotated[list[DataFile], Field(exclude=True)]

    @property
    def read(self) -> list[tuple[str, int]]:
        """The published datasets that it was made from, each with a version that was read."""
        return [(name, n) for name, versions in self.inputs.items() for n in versions]

    @classmethod
    def of(cls, name: str, entry: Entry) -> DatasetVersion:
        """Return the version of the dataset ``name`` that ``entry`` made."""
        change = entry.datasets[name]
        return from_record(
            cls,
            change,
            version=entry.n,
            files=len(change.added),
            replaced_files=len(change.removed),
            replaced_partitions=change.replaced,
            bytes=bytes_of(change.added),
            published_at=entry.at,
            job=entry.job,
            job_name=entry.job_name,
            params=entry.params,
            code=change.steps,
            stream=change.checkpoint,
            made_on=entry.made_on.get(name, []),
        )


def bytes_of(files: Sequence[DataFile]) -> int:
    """Return the size of these files."""
    return sum(file.bytes for file in files)


def columns_of(state: DatasetState) -> tuple[Column, ...]:
    """Return the columns of a dataset."""
    fields = json.loads(state.schema).get("fields", []) if state.schema else []
    return tuple(Column(field["name"], json.dumps(field["type"]).strip('"')) for field in fields)
