"""Skips one file of a stream: an entry of the warehouse log marks it as read, without rows.

Before the first load there is no dataset for an entry, so the warehouse stores a note for this
load.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from hashlib import sha256

from pydantic import computed_field

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.spec.messages import PATTERNS, pattern_of
from unstuck.tasks.errors import DatasetNotFound, WarehouseMismatch
from unstuck.tasks.spec.fields import DatasetName
from unstuck.tasks.streams.arrived.listing import fixed_folder, found_as
from unstuck.tasks.streams.arrived.position import FilesPosition, read_position, write_position
from unstuck.tasks.streams.arrived.skipped import Skipped, note_skipped
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry, State
from unstuck.tasks.warehouse.marker import Checkpoint

SKIP = "skip"
_TRIES = 10  # of jobs that publish at the same time


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that no job will read.

    Attributes:
        target: name of the dataset.
        path: of the file.
        version: entry of the warehouse log that skips it, or the newest entry of the dataset if
            ``new`` is False; 0 if the dataset was not loaded yet.
        new: whether this call skipped it; False if it was skipped or read before.
    """

    target: str
    path: str
    version: int
    new: bool

    @computed_field  # type: ignore[prop-decorator]
    @property
    def answer(self) -> Answer:
        """DONE, or ALREADY if nothing changed."""
        return Answer.DONE if self.new else Answer.ALREADY

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """A sentence for people."""
        if not self.new:
            return f"{self.path} counts as read already, so there is nothing to skip"
        if self.version:
            return f"{self.path} is skipped, by version {self.version} of the warehouse"
        return f"{self.path} is skipped: the first load of the dataset ignores it"


class _Moved(Exception):
    """A job has read on in the stream meanwhile."""


def skip_file(
    warehouse: Warehouse, dataset: str, file: str, *, by: str, reason: str = ""
) -> SkippedFile:
    """Skip ``file``, with its present content, in the stream of ``dataset``. A repeat is safe.

    Args:
        file: path of the file; once the dataset is loaded, also relative to the folder of the
            stream.
        by, reason: who and why, for the history.

    Raises:
        Refused: no dataset can have this name, it is not loaded from files, or the file is not
            among them.
        SourceUnavailable: this process cannot read the folder of the stream.
        WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated.
    """
    place = warehouse.storage.uri("")
    if (identity := warehouse.identity()) is None:
        raise WarehouseMismatch(f"There is no warehouse at {place}; is it mounted?")
    # With the identity, nothing is written in its place if the warehouse goes away meanwhile.
    warehouse = Warehouse(place, identity)
    for _ in range(_TRIES):
        try:
            return _skip(warehouse, dataset, file, by, reason)
        except _Moved:
            continue
    raise Refused(
        f"jobs keep reading the stream of {dataset}; pause their schedule, and repeat the command"
    )


def _skip(warehouse: Warehouse, dataset: str, file: str, by: str, reason: str) -> SkippedFile:
    try:
        now = warehouse.dataset(dataset)
    except DatasetNotFound:
        return _skip_at_first(warehouse, dataset, file, by, reason)
    before = now.checkpoint
    if before is None:
        return _skip_at_first(warehouse, dataset, file, by, reason)
    if before.held_by:
        raise Refused(
            f"{before.held_by} holds the position of this stream: skip the file for "
            f"{before.held_by}"
        )
    position = _files_position(warehouse, dataset, before)
    path = _path_in_stream(dataset, file, before)
    content = _found(path)
    if position.contents.get(path) == content:
        return SkippedFile(dataset, path, now.changed, False)
    digest = sha256(f"{before.path} {path} {content}".encode()).hexdigest()[:12]
    publish_id = f"{SKIP}-{dataset}-{digest}"
    staging = f"_staging/{publish_id}/{SKIP}/1-{SKIP}-0"
    why = _why(by, reason)
    files = {**position.contents, path: content}
    after = replace(position, contents=files, read={}, put_aside={path: why})
    where, note = f"{staging}/{dataset}.position", f"{path} was {why}"
    size = write_position(warehouse.storage, where, after)
    checkpoint = replace(
        before, path=where, bytes=size, after=before.path, after_state="", counts={}, summary=note
    )

    def entry(n: int, state: State) -> Entry:
        """Return the entry with the number ``n``. Raises: _Moved."""
        current = state[dataset]
        if current.checkpoint != before:
            raise _Moved
        params = {"file": path, "reason": reason} if reason else {"file": path}
        return Entry(
            n,
            n - 1,
            publish_id,
            "package",
            publish_id,
            f"{SKIP} of a file by {by}",
            time.time(),
            params,
            datasets={dataset: Change(SKIP, [], [], 0, current.schema, checkpoint=checkpoint)},
            tokens=[staging],
        )

    appended, new = warehouse.append(publish_id, now.changed, entry)
    return SkippedFile(dataset, path, appended.n, new)


def _files_position(warehouse: Warehouse, dataset: str, checkpoint: Checkpoint) -> FilesPosition:
    """Return the position of a stream of files. Raises: Refused: it is another stream."""
    if checkpoint.kind == "files":
        position = read_position(warehouse.storage, checkpoint.path)
        if isinstance(position, FilesPosition):
            return position
    raise Refused(f"{dataset} is not loaded from files, so it has no file to skip")


def _path_in_stream(dataset: str, file: str, checkpoint: Checkpoint) -> str:
    """Return the whole path of a file of a stream. Raises: Refused."""
    folder = fixed_folder(checkpoint.stream)
    below = f"{folder.rstrip('/')}/"
    if file.startswith(below):
        return file
    if file.startswith("/"):
        raise Refused(f"{file} is not in {folder}, from which {dataset} is loaded")
    return f"{below}{file}"


def _skip_at_first(
    warehouse: Warehouse, dataset: str, file: str, by: str, reason: str
) -> SkippedFile:
    if not re.fullmatch(pattern_of(DatasetName), dataset):
        expected = PATTERNS[pattern_of(DatasetName)]
        raise Refused(f"{dataset!r} is not the name of a dataset: expected {expected}")
    if not file.startswith("/") and "://" not in file:
        raise Refused(
            f"{dataset} was not loaded yet, so the folder of its stream is not known: give the "
            "whole path"
        )
    note = Skipped(file, _found(file), _why(by, reason))
    return SkippedFile(dataset, file, 0, note_skipped(warehouse.storage, dataset, note))


def _found(path: str) -> str:
    """Return the content of a file. Raises: Refused: there is no such file."""
    try:
        return found_as(path)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(
            f"there is no file {path}, as this host sees it; nothing was skipped"
        ) from None


def _why(by: str, reason: str) -> str:
    return f"skipped by {by}: {reason}" if reason else f"skipped by {by}"
