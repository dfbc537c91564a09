"""The documents of datasets: how one stands, its versions, and the sources of its stream; and rows
as plain values.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

from unstuck.documents.document import AnswerDocument, Document, Time
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry
from unstuck.tasks.warehouse.marker import Checkpoint
from unstuck.views.dataset_views import bytes_of, columns_of


class ColumnDocument(Document):
    """One column, with its type as Spark's JSON has it."""

    name: str
    type: str


class DatasetDocument(Document):
    """A dataset at one version.

    Attributes:
        owner: name of the job that owns it; None if no job has published it.
        shared_with: names of other jobs that may publish it, or patterns.
        table: of a Delta table, where its rows are.
        paths: its files, if requested.
    """

    dataset: str
    version: int
    rows: int
    job: str
    job_name: str
    owner: str | None
    shared_with: list[str]
    files: int
    bytes: int
    published_at: Time
    warehouse: str
    columns: list[ColumnDocument]
    table: str | None
    paths: list[str] | None

    @classmethod
    def of_state(
        cls, place: Warehouse, uri: str, name: str, state: DatasetState, files: bool
    ) -> DatasetDocument:
        """``files``: name its files; ``uri``: of the warehouse, as the user wrote it."""
        return cls.of(
            state,
            dataset=name,
            version=state.changed,
            owner=state.owner.job_name if state.owner is not None else None,
            shared_with=state.owner.shared_with if state.owner is not None else [],
            files=len(state.files),
            bytes=bytes_of(state),
            published_at=state.at,
            warehouse=uri,
            columns=columns_of(state),
            paths=[place.storage.uri(file.path) for file in state.files] if files else None,
        )


class RestoredDocument(AnswerDocument):
    """A dataset that stands as it did before; ``new`` is false if it stood so already."""

    dataset: str
    version: int
    new: bool
    rows: int
    files: int
    replaced: Replaced | None
    stream: str | None


class SkippedFileDocument(AnswerDocument):
    """A file that the stream of a dataset passes over. ``version``: of the warehouse that says so;
    0 before the first load. ``new`` is false if it was so already.
    """

    dataset: str
    path: str
    version: int
    new: bool


class DatasetVersionDocument(Document):
    """One version of a dataset: its change, the job that made it, and the inputs and code that led
    to its rows.

    Attributes:
        taken_from: name of the job that owned the dataset before, if this version changed its
            owner; else empty.
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
    params: dict[str, Any]
    inputs: dict[str, list[int]]
    code: dict[str, str]
    stream: Checkpoint | None
    made_on: list[str]

    @classmethod
    def of_entry(cls, name: str, entry: Entry) -> DatasetVersionDocument:
        change: Change = entry.datasets[name]
        return cls.of(
            entry,
            version=entry.n,
            mode=change.mode,
            rows=change.rows,
            files=len(change.added),
            replaced_files=len(change.removed),
            replaced_partitions=change.replaced,
            bytes=sum(file.bytes for file in change.added),
            published_at=entry.at,
            taken_from=change.taken_from,
            inputs=change.inputs,
            code=change.steps,
            stream=change.checkpoint,
            made_on=entry.made_on.get(name, []),
        )


class SourceDocument(Document):
    """One source of a version; ``put_aside``: why no row of it was read."""

    version: int
    source: str
    rows: int | None
    bytes: int | None
    put_aside: str


def plain_value(value: Any) -> Any:
    """A value of a row as JSON has it: times in ISO form, bytes in hexadecimal, decimals as
    text.
    """
    if isinstance(value, dict):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain_value(element) for element in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
