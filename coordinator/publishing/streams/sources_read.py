"""The sources of a version: the files or messages of a stream from which it was loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unstuck.tasks.formats.arrived import size_of
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition, read_position
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import Checkpoint


@dataclass(frozen=True, slots=True)
class SourceRead:
    """One source of a version.

    Attributes:
        version: of the warehouse that loaded it.
        source: a file, a range of offsets, or a description if that is unknown.
        rows: number of its rows; None if they were not counted.
        bytes: its size; None if unknown.
        put_aside: why none of its rows was read; empty if they were read.
    """

    version: int
    source: str
    rows: int | None = None
    bytes: int | None = None
    put_aside: str = ""


def sources_of(warehouse: Warehouse, dataset: str, entry: Entry) -> list[SourceRead]:
    """Return the sources of ``dataset`` at the version of ``entry``.

    If another dataset of the entry has the checkpoint, its sources are returned.

    Raises: OSError: the warehouse cannot be read.
    """
    changes = [
        change
        for name, change in sorted(entry.datasets.items(), key=lambda pair: pair[0] != dataset)
    ]
    checkpoint = next(
        (change.checkpoint for change in changes if change.checkpoint is not None), None
    )
    if dataset not in entry.datasets or checkpoint is None:
        return []
    try:
        return [*_of(entry.n, checkpoint, read_position(warehouse.storage, checkpoint.path))]
    except FileNotFoundError:
        return [SourceRead(entry.n, f"{checkpoint.stream}: a vacuum has removed the list of files")]


def _of(
    version: int, checkpoint: Checkpoint, position: FilesPosition | KafkaPosition
) -> Iterator[SourceRead]:
    if isinstance(position, FilesPosition):
        for path in sorted({*position.read, *position.put_aside}):
            content = position.contents.get(path)
            size = None if content is None else size_of(content)
            yield SourceRead(
                version, path, position.read.get(path), size, position.put_aside.get(path, "")
            )
        return
    for partition, end in sorted(position.next.items()):
        if (begin := position.began.get(partition, 0)) < end:
            yield SourceRead(
                version,
                f"{checkpoint.stream}, partition {partition}, offsets {begin:,} to {end - 1:,}",
            )
