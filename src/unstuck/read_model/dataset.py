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
from unstuck.tasks.warehouse.log_entry import DatasetState, Entry
from unstuck.tasks.warehouse.marker import Checkpoint, DataFile


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Its type is written as in Spark's JSON."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A dataset at one version.

    Attributes:
        version: of the warehouse that changed it last; ``job`` is the job that did.
        files: number of files; ``bytes``: of all of them.
        many_small: number of files if they are so many and small that readers slow down; else 0.
        owner: name of the job that owns it; None if no job has published it.
        shared_with: names of other jobs that may publish it, or patterns.
        table: path of its Delta table; None if its rows are in the warehouse.
        stream: that was published into it last.
        warehouse: address of its warehouse.
        paths: of its files, if they were requested.
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
            stream=state.checkpoint,
            paths=paths,
        )


@dataclass(frozen=True, kw_only=True)
class DatasetVersion:
    """One version of a dataset: its change, the job that made it, and the inputs and code that led
    to its rows.

    Attributes:
        rows: that it added, in so many ``files``.
        replaced_files: number of files that it removed.
        taken_from: name of the job that owned the dataset before, if this version changed the
            owner; else empty.
        inputs: versions of the datasets that the rows were made from.
        code: by group.
        stream: position after it, if its rows came from a stream.
        made_on: versions of Python and Spark.
        added: files that it added.
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
