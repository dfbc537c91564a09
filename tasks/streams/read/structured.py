"""Run the query of a stream with state over the rows that have arrived.

The attempt works on a copy of the state that is published with the dataset. What Spark has noted
there counts only once the marker names it, and is seen only once the log does, so a dead attempt
leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from unstuck.tasks.errors import InputMissing, StagingLost
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.frames.output import stage
from unstuck.tasks.frames.parquet_stream import listed_for_stream, read_in_batch
from unstuck.tasks.frames.spark import hadoop_uri, is_frame, remove_folder
from unstuck.tasks.warehouse.checkpoint import newest_commit, pack, unpack, what_is_lost
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

# Spark removes what it has noted of more batches.
_RETAINED = "spark.sql.streaming.minBatchesToRetain"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the query of an output goes on.

    Attributes:
        job: that of the attempt.
        folder: of Spark's checkpoint in this attempt, relative to the warehouse.
        state: the packed checkpoint that is published with the dataset; empty: the query begins.
        arrived: the folder of the rows that have arrived, relative to the warehouse; empty if
            nothing has. Spark would run no batch then, since it runs those that a watermark asks
            for before it ends.
    """

    job: str
    output: str
    folder: str
    state: str
    arrived: str

    @property
    def packed(self) -> str:
        """The file into which the checkpoint is packed at the end."""
        return f"{self.folder}.tar.gz"


def is_streaming(frame: Any) -> bool:
    """Return whether ``frame`` is a streaming frame of Spark.

    Always False for Spark Connect, where the check would be a remote call.
    """
    return is_frame(frame) and not is_remote(frame) and bool(frame.isStreaming)


def is_remote(part: Any) -> bool:
    """Whether a session or a frame is one of Spark Connect."""
    return type(part).__module__.startswith("pyspark.sql.connect")


def stage_stream(
    files: Files, folder: str, frame: Any, partition_by: Sequence[str], resume: Resume
) -> StagedOutput:
    """Run a streaming ``frame`` over the rows that have arrived, and write the result.

    The result is written into ``folder`` as `stage` does.

    Raises:
        InputMissing: the published state is gone.
        StagingLost: that of this attempt is not whole.
        Exception: as `stage`, and what Spark raises.
    """
    files.remove_tree(folder)
    batches = _staged(files, folder, frame, partition_by, resume) if resume.arrived else []
    if not batches:
        nothing = frame.sparkSession.createDataFrame([], frame.schema)
        batches = [stage(files, f"{folder}/no-rows", nothing, partition_by)]
    rows = sum(batch.rows for batch in batches)
    return replace(batches[0], files=[file for batch in batches for file in batch.files], rows=rows)


def _staged(
    files: Files, folder: str, frame: Any, partition_by: Sequence[str], resume: Resume
) -> list[StagedOutput]:
    """Return the batches with rows, after packing the checkpoint. Raises: as `stage_stream`."""
    committed = _resumed(files, resume)
    listed = _listed(files, resume)
    batches, read = _run_query(files, folder, frame, partition_by, resume)
    if read != {listed} - {0}:
        raise StagingLost(
            f"Spark read {min(read, default=0)} of {listed} files with what has arrived, below "
            f"{files.uri(resume.arrived)}. The warehouse was away for a while, or somebody removed "
            "files; the group runs again, as its retry: allows"
        )
    kept = int(frame.sparkSession.conf.get(_RETAINED))
    paths = files.paths(resume.folder)
    if lost := what_is_lost(files, resume.folder, paths, committed, sorted(batches), kept):
        # While the warehouse is away, Spark writes into whatever stands at its path, without an
        # error.
        raise StagingLost(
            f"the checkpoint {files.uri(resume.folder)} is not whole: {lost}. The warehouse was "
            "away for a while, or somebody removed files; the group runs again, as its retry: "
            "allows"
        )
    pack(files, resume.folder, paths, resume.packed)
    if files.local_path("") is None:
        remove_folder(frame.sparkSession, files.uri(resume.folder))
    with suppress(OSError):  # it is of no use any more, and a state store may still write to it
        files.remove_tree(resume.folder)
    return [batch for _, batch in sorted(batches.items()) if batch.rows]


def _resumed(files: Files, resume: Resume) -> int:
    """Unpack the published state. Returns the newest batch in it; -1 without state.

    Raises: InputMissing; OSError.
    """
    files.remove_tree(resume.folder)
    if not resume.state:
        return -1
    try:
        unpack(files, resume.state, resume.folder)
        return newest_commit(files.paths(resume.folder))
    except FileNotFoundError as error:
        raise InputMissing(f"the state of a stream is gone: {files.uri(resume.state)}") from error


def _run_query(
    files: Files, folder: str, frame: Any, partition_by: Sequence[str], resume: Resume
) -> tuple[dict[int, StagedOutput], set[int]]:
    """Run the query over all that has arrived.

    Returns the staged batches by number, and how many files each of them read.
    """
    batches, read, raised = dict[int, StagedOutput](), set[int](), list[Exception]()

    def stage_batch(rows: Any, number: int) -> None:
        try:
            active = {query.name: query for query in frame.sparkSession.streams.active}
            read.update(read_in_batch(active[resume.folder], resume.arrived))
            batches[number] = stage(files, f"{folder}/batch-{number}", rows, partition_by)
            reach(Point.AFTER_BATCH, resume.job)
        except Exception as error:
            raised.append(error)
            raise

    writer = frame.writeStream.queryName(resume.folder)
    writer = writer.option("checkpointLocation", hadoop_uri(files.uri(resume.folder)))
    query = writer.trigger(availableNow=True).foreachBatch(stage_batch).start()
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - raised again
        # As it would be without a stream; Spark wraps it several times.
        raise [*raised, getattr(error, "_cause", None) or error][0] from None
    finally:
        query.stop()
    return batches, read


def _listed(files: Files, resume: Resume) -> int:
    """How many files the query has to read. Raises: StagingLost; OSError."""
    try:
        return listed_for_stream(files, resume.arrived)
    except FileNotFoundError as error:
        raise StagingLost(
            f"{files.uri(resume.arrived)} is gone; the group runs again, as its retry: allows"
        ) from error
