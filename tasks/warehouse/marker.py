"""Define the marker, the durable record that an attempt finished, beside its staged files.

It is written last, and only for an attempt that made something.

It proves that the work was done, not that it counts: the commit that records its token makes it the
group's output, and only the warehouse log makes it visible.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from unstuck.tasks.errors import MarkerFailed, OutputInvalid, StagingLost, WarehouseMismatch
from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.report import in_short
from unstuck.tasks.warehouse.files import Files, WarehousePath

MARKER = "_marker.json"
MARKER_VERSION: Literal[1] = 1
_TRIES = 4
_ATTEMPT = re.compile(r"(\d+)-\w+-\w+")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, config=DEFERRED)
class DataFile:
    """One Parquet file: its path relative to the warehouse, its rows, its size in bytes.

    Attributes:
        partition: by column, the value that all its rows have, as text; None for null. Empty where
            nothing parts them.
        outside_of: the partitions that its load replaces, as `load_of` returns them, if the file is
            in none of them.
    """

    path: WarehousePath
    rows: int
    bytes: int
    partition: dict[str, str | None] = field(default_factory=dict)
    outside_of: str = ""


def bytes_by_uri(files: Files, data_files: Iterable[DataFile]) -> dict[str, int]:
    """The size of each of ``data_files``, by its address in the warehouse ``files``."""
    return {files.uri(file.path): file.bytes for file in data_files}


NamedPartitions = dict[str, list[str | None]]
"""By column, the values that ``partitions:`` names, as text; None for null. Other columns may have
any value.
"""


def load_of(named: NamedPartitions) -> str:
    """Return the identity of a load by the partitions that it replaces, whatever their order."""
    ordered = {column: sorted(values, key=json.dumps) for column, values in named.items()}
    return json.dumps(ordered, sort_keys=True)


def are_named(named: Iterable[NamedPartitions]) -> Callable[[Mapping[str, str | None]], bool]:
    """A function that says whether a partition is one of those that any of ``named`` names."""
    # The members of a fork name one each, so these are looked up, however many there are.
    single: dict[tuple[str, ...], set[tuple[str | None, ...]]] = {}
    others = []
    for partitions in named:
        if {*map(len, partitions.values())} <= {1}:
            members = single.setdefault(tuple(sorted(partitions)), set())
            members.add(tuple(partitions[column][0] for column in sorted(partitions)))
        else:
            others.append(partitions)

    def is_named(partition: Mapping[str, str | None]) -> bool:
        for columns, members in single.items():
            if tuple(map(partition.get, columns)) in members:
                return True
        return any(
            all(partition.get(column) in values for column, values in partitions.items())
            for partitions in others
        )

    return is_named


@dataclass(frozen=True, slots=True, config=DEFERRED)
class PackedState:
    """The file with the packed checkpoint of a Spark query.

    Attributes:
        path: of the file, relative to the warehouse.
        bytes: size of the file.
    """

    path: WarehousePath
    bytes: int


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Checkpoint:
    """The position that a stream was read up to, in one file.

    Attributes:
        path: of the file, relative to the warehouse.
        bytes: size of the file.
        stream: the folder or topic that was read.
        generation: of the stream; a higher one begins again.
        after: the path of the checkpoint that was published when the attempt began; empty: there
            was none.
        kind: of the position in the file.
        counts: what was read since ``after``, such as ``files`` and ``bytes``.
        summary: the same in words.
        held_by: the dataset that holds the position, if this one only notes up to where its rows
            go; else empty.
        adds_to: of a member of a fork, whose file holds its share alone: the path of the position
            that the share is added to, or empty if the stream begins. None: the file holds the
            whole position.
        state: from which the query of the stream goes on; None without ``state: true``.
        after_state: the path of the packed state that this one takes the place of; empty: of none.
    """

    path: WarehousePath
    bytes: int
    stream: str
    generation: int
    after: WarehousePath | Literal[""]
    kind: Literal["files", "kafka"] = "files"
    counts: dict[str, int] = field(default_factory=dict)
    summary: str = ""
    held_by: str = ""
    adds_to: WarehousePath | Literal[""] | None = None
    state: PackedState | None = None
    after_state: WarehousePath | Literal[""] = ""


@dataclass(frozen=True, slots=True, config=DEFERRED)
class StagedOutput:
    """One output of one attempt.

    Attributes:
        schema: Spark's JSON of a struct, also where no Spark wrote the files.
        rejected_by: by rule of the output, how many rows did not meet it; empty where there are no
            rules.
        rejected_of: the output whose rejected rows these are; empty for all other outputs.
        newest: the newest value of the column that is measured, in seconds since the epoch; None if
            there is none.
        checkpoint: of the stream that the rows were read from; None for all other outputs.
        replaces: with ``partition_overwrite`` the partitions that it replaces, one for each member
            of a fork.
        nothing_new: at what a stream of its group looked, for which nothing had arrived; empty if
            it has rows.
    """

    files: list[DataFile]
    rows: int
    schema: str
    rejected_by: dict[str, int] = field(default_factory=dict)
    rejected_of: str = ""
    newest: float | None = None
    checkpoint: Checkpoint | None = None
    replaces: list[NamedPartitions] = field(default_factory=list)
    nothing_new: str = ""

    def of_load(self, named: NamedPartitions) -> StagedOutput:
        """Return this output as that of a load which replaces the partitions ``named``."""
        is_named, load = are_named([named]), load_of(named)
        files = [
            file if is_named(file.partition) else replace(file, outside_of=load)
            for file in self.files
        ]
        return replace(self, files=files, replaces=[named])

    @property
    def written(self) -> list[DataFile]:
        """All that the attempt has written for it: its data files, its position, and its state."""
        checkpoint = self.checkpoint
        beside: list[Checkpoint | PackedState] = []
        if checkpoint is not None:
            beside = [checkpoint, *([checkpoint.state] if checkpoint.state else [])]
        return [*self.files, *(DataFile(file.path, 0, file.bytes) for file in beside)]


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Read:
    """A published dataset that an attempt read.

    Attributes:
        requested: the version of the warehouse that was requested; 0: the newest when the job
            was submitted.
        version: the version that had changed the dataset last, as it was read; 0 if there was no
            such dataset.
    """

    dataset: str
    requested: int
    version: int


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Marker:
    """The record of all that an attempt made.

    Attributes:
        token: who made it (``job/group/epoch/nonce/claimant``).
        fingerprint: of the work order; equal fingerprints mean that running again would do the same
            work.
        outputs: by name.
        forks: values collected for dynamic forks, by ``output.column``.
        results: small values that steps returned through ``ctx.result``.
        code: what stood for the code of its steps, for people; the fingerprint covers it.
        params: a digest of each parameter that the work may depend on, empty of one that was not
            there; None: on any.
        written_at: seconds since the epoch, by the clock of the worker; for people only.
        reads: the published datasets that it read.
        made_on: the versions of Python, Spark (if it was used), pandas and pyarrow, by name.
        sources: dataset → versions: what it read, and what stands behind all that it read of other
            groups; 0 for a dataset that was not published.
    """

    token: str
    fingerprint: str
    outputs: dict[str, StagedOutput]
    forks: dict[str, list[Any]]
    results: dict[str, Any]
    written_at: float
    code: str = ""
    params: dict[str, str] | None = None
    reads: list[Read] = field(default_factory=list)
    sources: dict[str, list[int]] = field(default_factory=dict)
    made_on: dict[str, str] = field(default_factory=dict)
    version: Literal[1] = MARKER_VERSION

    @property
    def arrived(self) -> str:
        """What had arrived in the stream of the group, in words; empty without a stream."""
        texts = (
            output.nothing_new or (output.checkpoint.summary if output.checkpoint else "")
            for output in self.outputs.values()
        )
        return next(filter(None, texts), "")

    @property
    def made_nothing(self) -> bool:
        """Whether the record of the group is enough.

        Then others read nothing of it, and it read no published data.
        """
        return not (self.outputs or self.forks or self.results or self.reads)


_MARKER: TypeAdapter[Marker] = TypeAdapter(Marker)


def write_marker(
    files: Files, staging: str, marker: Marker, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Put the marker into the attempt's ``staging`` folder, durably, after the files it names.

    Raises:
        MarkerFailed: it could not be written within some seconds, or another one stands there.
        OutputInvalid: its forks or results are not JSON.
        WarehouseMismatch: what stands here is not the warehouse that ``files`` was made for.
        StagingLost: a file that the marker names is not there.
    """
    path = f"{staging}/{MARKER}"
    retrying = Retrying(
        retry=retry_if_exception_type((OSError, WarehouseMismatch, StagingLost)),
        stop=stop_after_attempt(_TRIES),
        wait=wait_exponential(multiplier=0.2, max=2) + wait_random(0, 0.1),
        sleep=sleep,
        reraise=True,
    )
    try:
        data = _MARKER.dump_json(marker)
    except ValueError as error:
        raise OutputInvalid(
            f"what {marker.token} made cannot be stored as JSON: {error}"
        ) from error
    try:
        retrying(_write, files, path, marker, data)
    except OSError as error:
        raise MarkerFailed(
            f"the marker of {marker.token} could not be written to {files.uri(path)}: {error}. Its "
            "outputs count for nothing; the group runs again, as its retry: allows. Look at the "
            "space, rights and health of the warehouse"
        ) from error


def _write(files: Files, path: str, marker: Marker, data: bytes) -> None:
    paths = [file.path for output in marker.outputs.values() for file in output.written]
    if paths:
        # First, so that what was written to a path from which the warehouse had gone is not vouched
        # for at that path.
        files.check()
    # The marker vouches for the files, so they reach the disk first: a loss of power must not leave
    # it alone there.
    try:
        files.sync(paths)
    except FileNotFoundError as error:
        raise StagingLost(
            f"{error.filename}, which {marker.token} wrote, is not there any more. The warehouse "
            "was away for a while during the attempt, or somebody removed the file; the group runs "
            "again, as its retry: allows"
        ) from error
    # A folder belongs to one claimant, and a file is renamed into it whole. A store may take a
    # request that was given up after a later one, so there the marker is created and never
    # replaced.
    if files.local_path(path) is not None:
        files.write_durable(path, data)
        # A log or a frame may have created the folder without syncing it.
        files.sync_names(path.rpartition("/")[0])
    elif not files.create(path, data) and (existing := files.read(path)) != data:
        raise MarkerFailed(
            f"another marker than that of {marker.token} stands at {files.uri(path)}, and it was "
            f"left there: {existing[:200].decode(errors='replace')}"
        )


def read_marker(files: Files, staging: str) -> Marker | None:
    """Read the marker in ``staging``. Returns None if it is absent or not readable.

    A marker that this release cannot read is logged.

    Raises: OSError: the store could not be asked, which says nothing about the marker.
    """
    path = f"{staging}/{MARKER}"
    try:
        return _MARKER.validate_json(files.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        log.warning(
            "The marker %s cannot be read and counts as absent: %s",
            files.uri(path),
            in_short(error),
        )
        return None


def joined_versions(sources: Iterable[Mapping[str, Iterable[int]]]) -> dict[str, list[int]]:
    """The versions of each dataset that any of ``sources`` names, in order."""
    versions: dict[str, set[int]] = {}
    for source in sources:
        for dataset, each in source.items():
            versions.setdefault(dataset, set()).update(each)
    return {dataset: sorted(each) for dataset, each in sorted(versions.items())}


def files_exist(files: Files, data_files: list[DataFile]) -> bool:
    """Return whether each of ``data_files`` exists with its size.

    Raises: OSError: the store could not be asked.
    """
    return all(files.size(file.path) == file.bytes for file in data_files)


def find_done_marker(
    files: Files, group_folder: str, counts: Callable[[Marker], bool]
) -> tuple[str, Marker] | None:
    """Return the folder and the newest marker below ``_staging/<job>/<group>`` that ``counts``.

    All its files must exist.

    Nothing needs to run again then: after a restart, a rollback of Redis, in a retry.

    Raises: OSError: the store could not be asked.
    """
    for staging, marker in _markers(files, group_folder):
        if counts(marker) and all(
            files_exist(files, output.written) for output in marker.outputs.values()
        ):
            return staging, marker
    return None


def newest_marker(files: Files, group_folder: str) -> Marker | None:
    """The marker of the newest attempt that finished, whatever it did. Raises: OSError."""
    return next((marker for _, marker in _markers(files, group_folder)), None)


def _markers(files: Files, group_folder: str) -> Iterator[tuple[str, Marker]]:
    """The folder and the marker of each attempt that has one, the newest first."""
    attempts = filter(None, map(_ATTEMPT.fullmatch, files.names(group_folder)))
    for _, name in sorted(((int(match[1]), match[0]) for match in attempts), reverse=True):
        if (marker := read_marker(files, f"{group_folder}/{name}")) is not None:
            yield f"{group_folder}/{name}", marker
