"""A stream with state: Spark Structured Streaming reads the files that have arrived, and they are staged as one output.

The attempt works on a copy of the checkpoint that is published with the dataset. What Spark has noted there counts only
once the marker names it, and is seen only once the log does, so a dead attempt leaves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from unstuck.tasks.errors import BadFile, InputMissing, SqlInvalid, StagingLost, Unrecoverable
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.frames.output import stage
from unstuck.tasks.frames.spark import hadoop_uri, is_frame, remove_folder, sql_error
from unstuck.tasks.protocol.java_text import told_by_java
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.stream_columns import columns_of
from unstuck.tasks.streams.arrived.listing import listing
from unstuck.tasks.streams.arrived.position import goes_on
from unstuck.tasks.streams.arrived.skipped import skipped
from unstuck.tasks.warehouse.checkpoint import newest_commit, pack, unpack, what_is_lost
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Checkpoint, StagedOutput

# Unless the spec says so, Spark passes over what is a week older than the newest file and over folders below, makes
# null what is no value, and takes the fields of CSV by their place, whatever the header says; all without a word.
_DEEP = "recursiveFileLookup"
_STRICT = {
    "maxFileAge": "36500d",
    _DEEP: "true",
    "mode": "FAILFAST",
    "enforceSchema": "false",
    "columnPruning": "false",
}
_NOT_READ = "Malformed records are detected|CSV header|Data type mismatch|cannot be converted in file"
# Spark 3.5 names the file at the end, and for a line that is no JSON not at all.
_BAD_FILE = re.compile(rf"(?:reading file |executor \w+\): )(?!.*reading file )(.*(?:{_NOT_READ}).*)")
_HINT = (
    ". Nothing was loaded. Mend the file, or move it out of the folder. If nulls will do, options: {mode: PERMISSIVE} "
    'reads what is no value as null, and {enforceSchema: "true"} takes the fields of CSV by their place'
)
_RETAINED = "spark.sql.streaming.minBatchesToRetain"  # Spark removes what it has noted of more batches


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the stream of an output goes on.

    Attributes:
        job: that of the attempt.
        folder: of the checkpoint of this attempt, relative to the warehouse; the file it is packed into is beside it.
        published: the checkpoint that is published with the dataset; None if there is none.
        stream, generation: of the input. If the generation is higher than the published one, the stream begins again.
    """

    job: str
    folder: str
    published: Checkpoint | None
    stream: str
    generation: int


def is_streaming(frame: Any) -> bool:
    """True for a frame of Spark whose rows have yet to arrive; of Spark Connect, where asking is a call, never."""
    return is_frame(frame) and not _is_remote(frame) and bool(frame.isStreaming)


def _is_remote(part: Any) -> bool:
    return type(part).__module__.startswith("pyspark.sql.connect")


def open_stream(session: Any, name: str, stream: StreamInput) -> Any:
    """The streaming frame of the input ``name``.

    Raises:
        SourceUnavailable, FileNameInvalid: as `listing`.
        Unrecoverable: the session is one of Spark Connect; or a column is one that folders are named by.
        SqlInvalid: Spark does not know a type of its columns.
        Exception: what Spark raises.
    """
    if _is_remote(session):
        raise Unrecoverable(
            f"the input {name} is a stream, with state: true, which is not supported with Spark Connect yet"
        )
    try:
        reader = session.readStream.format(stream.format).schema(stream.columns)
    except Exception as error:
        if (what := sql_error(error)) is not None:
            raise SqlInvalid(f"inputs: {name}: schema: {what}") from error
        raise
    said = {name.lower() for name in stream.options}
    strict = {name: value for name, value in _STRICT.items() if name.lower() not in said}
    uri = hadoop_uri(stream.stream)
    if (named := _named_by_folders(stream)) and _DEEP in strict:
        raise Unrecoverable(
            f"inputs: {name}: the column {named} would be null: folders are named by it ({named}=…), and files below "
            f'are read whatever those are called. Leave it out of schema:, or say options: {{{_DEEP}: "false"}}; '
            "Spark then takes it from the names of the folders, and reads no files beside such folders"
        )
    return reader.options(**strict, **stream.options).load(uri)


def _named_by_folders(stream: StreamInput) -> str:
    """The first column of the schema that is in the names of folders (``day=1``); empty if there is none."""
    found = listing(stream.model_copy(update={"ignore": []}))
    level = stream.stream.count("/") + 1
    names = {
        part.partition("=")[0].lower() for path in found.files for part in path.split("/")[level:-1] if "=" in part
    }
    return next((name for name, _ in columns_of(stream.columns) if name.lower() in names), "")


def stage_stream(files: Files, folder: str, frame: Any, partition_by: Sequence[str], resume: Resume) -> StagedOutput:
    """Write what has arrived for a streaming ``frame`` into ``folder``, as `stage` does. Returns when all is read.

    Raises:
        BadFile: Spark cannot read a file by the schema.
        InputMissing: the published checkpoint is gone.
        Unrecoverable: it is of another stream, or of a later generation; or somebody skipped a file that lies there.
        StagingLost: that of this attempt is not whole.
        Exception: as `stage`, and what Spark raises.
    """
    if resume.published is None and (passed := skipped(files, [folder.rpartition("/")[2]])):
        raise Unrecoverable(
            f"{passed[0].path} was {passed[0].why}, and with state: true Spark cannot pass over a file. Move it out of "
            "the folder, or write it anew to have it read, and submit the job again. Nothing was read"
        )
    files.remove_tree(folder)
    files.remove_tree(resume.folder)
    committed = -1
    on = goes_on(resume.published, resume.stream, resume.generation, "spark")
    if on and resume.published is not None:
        try:
            unpack(files, resume.published.path, resume.folder)
            committed = newest_commit(files.paths(resume.folder))
        except FileNotFoundError as error:
            raise InputMissing(f"the checkpoint of a stream is gone: {files.uri(resume.published.path)}") from error
    batches: dict[int, StagedOutput] = {}
    raised: list[Exception] = []

    def stage_batch(rows: Any, number: int) -> None:
        try:
            batches[number] = stage(files, f"{folder}/batch-{number}", rows, partition_by)
            reach(Point.AFTER_BATCH, resume.job)
        except Exception as error:
            raised.append(error)
            raise

    writer = frame.writeStream.option("checkpointLocation", hadoop_uri(files.uri(resume.folder)))
    query = writer.trigger(availableNow=True).foreachBatch(stage_batch).start()
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - raised again
        # As it would be without a stream; Spark wraps it several times.
        first = raised[0] if raised else getattr(error, "_cause", None) or error
        if about := _BAD_FILE.search(told_by_java(str(first))):
            raise BadFile(about[1] + _HINT) from None
        raise first from None
    finally:
        query.stop()
    found = [batch for _, batch in sorted(batches.items()) if batch.rows]
    if not found:
        nothing = frame.sparkSession.createDataFrame([], frame.schema)
        found = [stage(files, f"{folder}/no-rows", nothing, partition_by)]
    kept = int(frame.sparkSession.conf.get(_RETAINED))
    paths = files.paths(resume.folder)
    if lost := what_is_lost(files, resume.folder, paths, committed, sorted(batches), kept):
        # While the warehouse is away, Spark writes into whatever stands at its path, without an error.
        raise StagingLost(
            f"the checkpoint {files.uri(resume.folder)} is not whole: {lost}. The warehouse was away for a while, or "
            "somebody removed files; the group runs again, as its retry: allows"
        )
    packed = f"{resume.folder}.tar.gz"
    size = pack(files, resume.folder, paths, packed)
    if files.local_path("") is None:
        remove_folder(frame.sparkSession, files.uri(resume.folder))
    with suppress(OSError):  # it is of no use any more, and a state store may still write its snapshots there
        files.remove_tree(resume.folder)
    return replace(
        found[0],
        files=[file for batch in found for file in batch.files],
        rows=sum(batch.rows for batch in found),
        checkpoint=Checkpoint(
            packed,
            size,
            resume.stream,
            resume.generation,
            after=resume.published.path if resume.published else "",
        ),
    )
