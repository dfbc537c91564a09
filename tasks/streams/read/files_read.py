"""The files that have arrived for a stream, read into one frame: all rows of a file, or none.

One decoder serves Spark and groups without it. A Spark frame reads the rows as Parquet that the
decoder wrote, so no name of a file is a pattern, no conf changes a value, and what is wrong with a
file is known before the first step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from heapq import heapreplace
from typing import Any

from unstuck.tasks.errors import BadFile, FileUnsettled, OutOfMemory, SourceUnavailable
from unstuck.tasks.formats.arrived import ArrivedFile, PutAsideEntry, shown_path
from unstuck.tasks.formats.decode import decoded
from unstuck.tasks.formats.digest import digest_of
from unstuck.tasks.formats.file_content import Gone, Unreadable
from unstuck.tasks.formats.rows import Parts, Rows
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.parquet_stream import stream_parquet
from unstuck.tasks.frames.spark import empty_table
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.schemas import schema_of
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.streams.read.spark_tasks import in_tasks
from unstuck.tasks.time_zone import zone_here
from unstuck.tasks.warehouse.files import Files

log = logging.getLogger(__name__)
_OF_FILE = 32 * 1024  # bytes that take as long as it takes to open one
_TASKS = 10_000
_AGAIN = ". A retry reads what stands then. Write files elsewhere, and rename them into the folder"
_HINT = (
    ". Nothing was loaded. Mend the file; or pass over it: `unstuck stream skip DATASET FILE`, or "
    "for each such file on_bad_file: skip"
)


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """When tasks of Spark decode files, in bytes of these files.

    Attributes:
        driver: up to so many bytes are decoded by the driver, without a job of Spark.
        task: the least that one task decodes.
    """

    driver: int = 64 * 1024 * 1024
    task: int = 16 * 1024 * 1024


TASK_SIZES = TaskSizes()


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The outcome of a reading.

    Attributes:
        frame: an Arrow table, or a Spark frame; with ``state: true`` a streaming one.
        rows: by path, of each file that was read.
        digests: by path, of the same files.
    """

    frame: Any
    rows: dict[str, int]
    put_aside: list[PutAsideEntry] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def bad(self) -> dict[str, str]:
        """The files that cannot be read, by path, with the reason."""
        return {aside.path: aside.error for aside in self.put_aside if not aside.gone}

    @property
    def gone(self) -> list[str]:
        """The paths of files that were removed or changed since they were listed."""
        return [aside.path for aside in self.put_aside if aside.gone]


def read_files(
    session: Any,
    arrived: Sequence[ArrivedFile],
    stream: StreamInput,
    files: Files,
    folder: str,
    sizes: TaskSizes = TASK_SIZES,
) -> ReadFiles:
    """Read the ``arrived`` files of ``stream``.

    A column ``_file`` of the schema, a string, is the path of the file, unless the files have such
    a column.

    Args:
        session: of Spark, classic or Connect; None for an Arrow table.
        folder: in the warehouse, below the attempt's staging: where the rows stand for Spark.

    Raises:
        BadFile: a file cannot be read as the spec says, and ``on_bad_file`` is ``fail``.
        FileUnsettled: as that, for a file that is not there any more, or has changed.
        SourceUnavailable: this worker may not read a file, or its store failed.
        OutOfMemory: this worker has too little memory for a file.
        OSError: the warehouse failed.
    """
    zone, schema = zone_here(), schema_of(declared(stream.columns))
    if session is None:
        rows = Rows()
        outcomes = [_read_one(file, stream, zone, rows) for file in arrived]
        return _in_order(arrived, rows.table(empty_table(schema)), outcomes)
    done = None
    if len(arrived) > 1 and sum(map(_weight, arrived)) > sizes.driver:
        done = _in_tasks(session, _shares(arrived, sizes.task), stream, zone, files.uri(""), folder)
    if done is None:
        done = _read_some(arrived, stream, zone, files, folder)
    outcomes, written = done
    if stream.state:
        frame = stream_parquet(session, schema, written, files, folder)
    else:
        frame = read_parquet(session, [(schema, written)])
    return _in_order(arrived, frame, outcomes)


_Outcome = PutAsideEntry | tuple[str, int, str]  # path, rows, digest


def _in_order(
    arrived: Sequence[ArrivedFile], frame: Any, outcomes: Iterable[_Outcome]
) -> ReadFiles:
    by_path = {
        outcome.path if isinstance(outcome, PutAsideEntry) else outcome[0]: outcome
        for outcome in outcomes
    }
    ordered = [by_path[file.path] for file in arrived]
    read = [outcome for outcome in ordered if not isinstance(outcome, PutAsideEntry)]
    put_aside = [outcome for outcome in ordered if isinstance(outcome, PutAsideEntry)]
    rows = {path: count for path, count, _ in read}
    return ReadFiles(frame, rows, put_aside, {path: digest for path, _, digest in read})


def _read_one(file: ArrivedFile, stream: StreamInput, zone: str, rows: Rows) -> _Outcome:
    """Read the files.

    Raises: BadFile, FileUnsettled, SourceUnavailable, OutOfMemory; OSError of the warehouse.
    """
    count = 0
    try:
        digest = digest_of(file, exact=stream.known_by == "content")
        for table in decoded(file, stream, zone, stream.max_file_bytes or rows.max_file_bytes):
            rows.add(table)
            count += len(table)
    except Gone as gone:
        aside = PutAsideEntry(file.path, str(gone), True, None, "")
    except Unreadable as wrong:
        aside = PutAsideEntry(file.path, str(wrong), False, wrong.line or None, wrong.text)
    else:
        rows.keep()
        return file.path, count, digest
    rows.drop()
    if stream.on_bad_file == "skip":
        return aside
    raise _refused(aside)


def _refused(aside: PutAsideEntry) -> BadFile | FileUnsettled:
    text = (
        f"{shown_path(aside.path)}{f', line {aside.line:,}' if aside.line else ''}: {aside.error}"
    )
    return FileUnsettled(text + _AGAIN) if aside.gone else BadFile(text + _HINT)


def _read_some(
    arrived: Iterable[ArrivedFile], stream: StreamInput, zone: str, files: Files, folder: str
) -> tuple[list[_Outcome], dict[str, int]]:
    """Return the outcome of each file, and the URIs and sizes of the files with the rows.

    Raises: as `read_files`.
    """
    parts = Parts(files, folder)
    outcomes = [_read_one(file, stream, zone, parts) for file in arrived]
    return outcomes, parts.written()


# -- As a job of Spark -----------------------------------------------------------------------------


def _in_tasks(
    session: Any,
    shares: Sequence[list[ArrivedFile]],
    stream: StreamInput,
    zone: str,
    warehouse: str,
    folder: str,
) -> tuple[list[_Outcome], dict[str, int]] | None:
    """Run `_read_some` in Spark tasks, one for each share. Returns None if executors cannot.

    Raises: as `read_files`.
    """
    parts = [partial(_task, share, stream, zone, warehouse, folder) for share in shares]
    what = f"the {sum(map(len, shares))} files of a stream"
    errors = (BadFile, FileUnsettled, SourceUnavailable, OutOfMemory, OSError)
    outcomes, written, gone = list[_Outcome](), dict[str, int](), list[str]()
    try:
        answers = in_tasks(session, parts, errors, what)
        if answers is None:
            return None
    except (FileUnsettled, SourceUnavailable) as error:
        answers, gone = [], [str(error)]
    for answer in answers:
        aside = [PutAsideEntry(**entry) for entry in answer["put_aside"]]
        outcomes += [*map(tuple, answer["rows"]), *aside]
        written |= answer["written"]
        gone += [entry.error for entry in aside if entry.gone]
    if gone:  # a folder of this host may not be one of theirs
        log.warning(
            "a task of Spark could not read a file as it was listed, so the driver reads all: %s",
            gone[0],
        )
        return None
    return outcomes, written


def _shares(arrived: Sequence[ArrivedFile], task: int) -> list[list[ArrivedFile]]:
    """The files of each task: the largest come first, and each goes to the task that has least."""
    count = min(len(arrived), sum(map(_weight, arrived)) // task + 1, _TASKS)
    shares: list[tuple[int, int, list[ArrivedFile]]] = [(0, number, []) for number in range(count)]
    for file in sorted(arrived, key=lambda file: -file.size):
        size, number, share = shares[0]
        share.append(file)
        heapreplace(shares, (size + _weight(file), number, share))
    return [share for _, _, share in shares if share]


def _weight(file: ArrivedFile) -> int:
    return file.size + _OF_FILE


def _task(
    share: list[ArrivedFile], stream: StreamInput, zone: str, warehouse: str, folder: str
) -> dict[str, Any]:
    """Read the files of one task."""
    outcomes, written = _read_some(share, stream, zone, Files(warehouse), folder)
    rows = [outcome for outcome in outcomes if not isinstance(outcome, PutAsideEntry)]
    aside = [asdict(outcome) for outcome in outcomes if isinstance(outcome, PutAsideEntry)]
    return {"rows": rows, "put_aside": aside, "written": written}
