"""Read the stream of a group once in an attempt.

The position of the stream is published with one of the group's outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from unstuck.tasks.errors import InputMissing, OutputInvalid
from unstuck.tasks.formats.arrived import PutAsideEntry
from unstuck.tasks.frames.spark import plan_of
from unstuck.tasks.spec.outputs import BAD_FILE, BAD_RECORD
from unstuck.tasks.streams.arrived.fork_share import WHOLE, Share
from unstuck.tasks.streams.arrived.position import (
    FilesPosition,
    KafkaPosition,
    goes_on,
    holder_of,
    read_position,
    write_position,
)
from unstuck.tasks.streams.arrived.skipped import skipped
from unstuck.tasks.streams.read.put_aside import with_put_aside
from unstuck.tasks.streams.read.structured import Resume
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint, PackedState, StagedOutput


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The rows that have arrived, and the position after them.

    Attributes:
        frame: of Spark, or an Arrow table.
        position: after it; None if it has not moved.
        counts: for people: such as ``files`` and ``bytes``.
        summary: the counts in words.
        put_aside: of which no row was read.
    """

    frame: Any
    position: FilesPosition | KafkaPosition | None
    counts: Mapping[str, int] = field(default_factory=dict)
    summary: str = ""
    put_aside: Sequence[PutAsideEntry] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """The attempt that reads a stream.

    Attributes:
        session: None for a group without Spark.
        folder: where the rows stand for Spark, below the attempt's staging.
        share: of what has arrived.
    """

    session: Any
    files: Files
    folder: str
    share: Share = WHOLE


class Spec(Protocol):
    """The part of a stream input that its position depends on."""

    @property
    def identity(self) -> str:
        """The identity of the stream: its address."""

    @property
    def kind(self) -> Literal["files", "kafka"]:
        """The kind of its position."""

    @property
    def generation(self) -> int: ...

    @property
    def state(self) -> bool:
        """Whether Spark keeps a state for it."""


class Source(Protocol):
    """The place that a stream reads from."""

    @property
    def spec(self) -> Spec: ...

    def take(self, position: FilesPosition | KafkaPosition | None) -> StreamBatch:
        """Return the input that has arrived since ``position``; None for all input."""


class PublishedCheckpoints(Protocol):
    """The published datasets, as of the submit of the job."""

    def standing(self, dataset: str) -> DatasetState | None:
        """Not noted as read."""

    def checkpoint(self, dataset: str) -> Checkpoint | None:
        """Noted as read."""


class GroupStream:
    """The stream of one attempt, which is read once. One output of the group holds its position.

    That is the output whose dataset holds the position already, or else the first one that is
    written. With state it is the one output that is written from the stream, since Spark keeps the
    state of one query.

    Attributes:
        batch: the rows that have arrived.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        files: Files,
        staging: str,
        appended: Collection[str],
        published: PublishedCheckpoints,
        *,
        skips: bool = False,
        share: Share = WHOLE,
    ) -> None:
        """Read what has arrived since the published position.

        Args:
            appended: the outputs of the group that are published by appending to a dataset.
            published: the datasets as of the submit of the job.
            skips: what is bad is put aside.
            share: of what has arrived, which ``source`` takes.

        Raises:
            Unrecoverable: the datasets were loaded from another stream, or from a later generation.
            InputMissing: the published position is gone.
            Exception: what the source raises.
        """
        self.name, self._files, self._appended, self._skips = name, files, appended, skips
        self._spec, self._share, self._published = source.spec, share, published
        self._staging = f"{staging}/{name}"
        self._resume: Resume | None = None  # of the query, with state
        self._written = False
        datasets = {output: published.standing(output) for output in appended}
        self._holder = holder_of(datasets, self._spec.identity, self._spec.generation)
        self._before = None if self._holder is None else published.checkpoint(self._holder)
        # The path of the position that the reading goes on from.
        self._from = self._resumed_path()
        self.batch = self._first(source) if self._begins else source.take(self._position())

    def _resumed_path(self) -> str:
        before, spec = self._before, self._spec
        goes = goes_on(before, spec.identity, spec.generation, spec.state)
        return before.path if before is not None and goes else ""

    @property
    def _begins(self) -> bool:
        return not self._from and self._spec.kind == "files"

    @property
    def _folder(self) -> str:
        """Of the rows that have arrived, for Spark."""
        return f"{self._staging}.arrived"

    def _first(self, source: Source) -> StreamBatch:
        """Return all that has ever arrived, without what was skipped.

        The position records who skipped it.
        """
        passed = skipped(self._files, self._appended)
        batch = source.take(FilesPosition({file.path: file.content for file in passed}))
        # Noted by the member of a fork whose share it is, also if nothing else has arrived for this
        # one.
        own = [file for file in passed if self._share.has(file.path)]
        if not own:
            return batch
        after = batch.position if isinstance(batch.position, FilesPosition) else FilesPosition()
        contents = {file.path: file.content for file in own} | after.contents
        reasons = {file.path: file.why for file in own} | after.put_aside
        return replace(batch, position=replace(after, contents=contents, put_aside=reasons))

    def _position(self) -> FilesPosition | KafkaPosition | None:
        if not self._from:
            return None
        try:
            return read_position(self._files, self._from)
        except FileNotFoundError as error:
            raise InputMissing(
                f"the position of a stream is gone: {self._files.uri(self._from)}"
            ) from error

    def is_read_by(self, frame: Any) -> bool:
        """Whether a streaming ``frame`` is made of what has arrived."""
        return self._folder in plan_of(frame)

    def resume(self, name: str, job: str) -> Resume:
        """Return where the query continues from which the output ``name`` is written.

        Raises: OutputInvalid: another output has the state.
        """
        if not self._holds(name):
            has = f"{self._holder} has" if self._holder else "its dataset has"
            what = "the state of this stream" if self._holder else "the position of another stream"
            raise OutputInvalid(
                f"the output {name} cannot be written from the stream {self.name}: {has} {what}, "
                "and with state: true one output of a group is written from its stream. Read the "
                "stream in a group for each output, which says output: at its step"
            )
        state = self._before.state if self._before is not None and self._from else None
        before = "" if state is None else state.path
        arrived = self._folder if self.batch.position is not None else ""
        self._resume = Resume(job, name, f"{self._staging}.state", before, arrived)
        return self._resume

    def noted(
        self, folder: str, outputs: Mapping[str, StagedOutput], partition_by: Sequence[str]
    ) -> dict[str, StagedOutput]:
        """Return the output in ``folder`` and its rejected rows, with the position.

        What was put aside is among the rejected rows of the output that holds it. Others note it,
        so that they go on from there if they are loaded alone one day. Raises: OSError.
        """
        name, batch = folder.rpartition("/")[2], self.batch
        if name not in self._appended:
            return dict(outputs)
        if self._skips and self._is_written_with_position(name):
            outputs = self._with_put_aside(folder, outputs, partition_by)
        if batch.position is None:
            return self._noted_news(outputs, batch)
        holds = self._is_written_with_position(name)
        if self._holder is None or (self._spec.state and not holds):
            return dict(outputs)
        self._written |= holds
        at = self._at(batch.position, held_by="" if holds else self._holder)
        return {**outputs, folder: replace(outputs[folder], checkpoint=at)}

    def _with_put_aside(
        self, folder: str, outputs: Mapping[str, StagedOutput], partition_by: Sequence[str]
    ) -> dict[str, StagedOutput]:
        bad = [entry for entry in self.batch.put_aside if not entry.gone]
        why = BAD_RECORD if self._spec.kind == "kafka" else BAD_FILE
        return with_put_aside(self._files, folder, outputs, bad, partition_by, why)

    def _is_written_with_position(self, name: str) -> bool:
        """With state, the output of Spark's query holds the position, and no other."""
        if self._spec.state:
            return self._resume is not None and self._resume.output == name
        return self._holds(name)

    def _at(self, position: FilesPosition | KafkaPosition, held_by: str) -> Checkpoint:
        """Return the position after all that was taken, in its file. Raises: OSError."""
        path = f"{self._staging}.position"
        size = write_position(self._files, path, position)
        spec = self._spec
        at = Checkpoint(
            path,
            size,
            spec.identity,
            spec.generation,
            after="",
            kind=spec.kind,
            counts=dict(self.batch.counts),
            summary=self.batch.summary,
            held_by=held_by,
            adds_to=self._from if self._share.of > 1 else None,
        )
        if self._resume is not None:
            packed = self._resume.packed
            at = replace(at, state=PackedState(packed, self._files.size(packed) or 0))
        if self._before is not None:
            at = replace(at, after=self._before.path)
            if self._before.state is not None:
                at = replace(at, after_state=self._before.state.path)
        return at

    @staticmethod
    def _noted_news(
        outputs: Mapping[str, StagedOutput], taken: StreamBatch
    ) -> dict[str, StagedOutput]:
        summary = taken.summary if taken.position is None else ""
        return {
            folder: replace(output, nothing_new="" if output.rows else summary)
            for folder, output in outputs.items()
        }

    def _holds(self, name: str) -> bool:
        """Whether the output ``name`` holds the position; the first that can does."""
        if self._holder is None:
            before = self._published.checkpoint(name)
            if self._is_of_another_stream(before):
                return False
            self._holder, self._before = name, before
        return name == self._holder

    def _is_of_another_stream(self, at: Checkpoint | None) -> bool:
        return at is not None and at.generation >= self._spec.generation and not at.held_by

    def close(self) -> None:
        """Remove the rows that only the steps of this attempt read. Raises: OSError."""
        self._files.remove_tree(self._folder)

    def check(self, outputs: Collection[str]) -> None:
        """Check that the output with the position was written if any of ``outputs`` was.

        Raises: OutputInvalid.
        """
        if self.batch.position is None or self._written or not outputs:
            return
        wrote = f"the group read the stream {self.name} and wrote {', '.join(outputs)}"
        if self._spec.state:
            raise OutputInvalid(
                f"{wrote}, but none of them from the frame of the stream, so the next job would "
                f"read the same again. Write {self._holder or 'an output'} from it"
            )
        if self._holder is not None:
            raise OutputInvalid(
                f"{wrote}, but not {self._holder}, whose dataset holds the position of the stream, "
                f"so the next job would read the same again. Write {self._holder} too, be it a "
                "frame without rows"
            )
        how = f"{{{next(iter(outputs))}: {{mode: append}}}}"
        raise OutputInvalid(
            f"{wrote}, and none can hold the position of the stream: an output is not published by "
            "appending to a dataset of the warehouse, or holds the position of another stream. Say "
            f"outputs: {how}, and name the output under publish: if other groups need this one"
        )
