"""The stream of a group in one attempt: read once, and its position published with one of the
group's outputs.
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
        """The address."""

    @property
    def kind(self) -> Literal["files", "kafka"]:
        """Of its position."""

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
        """All that has arrived since ``position``; None: since ever."""


class PublishedCheckpoints(Protocol):
    """The published datasets, as of the submit of the job."""

    def standing(self, dataset: str) -> DatasetState | None:
        """Not noted as read."""

    def checkpoint(self, dataset: str) -> Checkpoint | None:
        """Noted as read."""


class GroupStream:
    """The stream ``name`` of one attempt. One output of the group holds its position, which all
    outputs share.

    That is the output whose dataset holds the position already, or else the first one that is
    written. With state it is the one output that is written from the stream, since Spark keeps the
    state of one query.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        files: Files,
        staging: str,
        appended: Collection[str],
        *,
        skips: bool = False,
        share: Share = WHOLE,
    ) -> None:
        """
        Args:
            appended: the outputs of the group that are published by appending to a dataset.
            skips: what is bad is put aside.
            share: of what has arrived, which ``source`` takes.
        """
        self.name, self._source, self._files, self._appended, self._skips = (
            name,
            source,
            files,
            appended,
            skips,
        )
        self._spec, self._share = source.spec, share
        self._path, self._folder = f"{staging}/{name}.position", f"{staging}/{name}.arrived"
        self._resume: Resume | None = None  # of the query, with state
        self._state = f"{staging}/{name}.state"
        self._holder: str | None = None
        self._before: Checkpoint | None = None
        self._from = ""  # the path of the position that the reading goes on from
        self._taken: StreamBatch | None = None
        self._written = False

    def open(self, published: PublishedCheckpoints) -> StreamBatch:
        """The rows that have arrived; looked up once.

        Raises:
            Unrecoverable: the datasets were loaded from another stream, or from a later generation.
            InputMissing: the published position is gone.
            Exception: what the source raises.
        """
        if self._taken is None:
            datasets = {name: published.standing(name) for name in self._appended}
            self._holder = holder_of(datasets, self._spec.identity, self._spec.generation)
            if self._holder is not None:
                self._before = published.checkpoint(self._holder)
            position = self._position()
            if position is None and self._spec.kind == "files":
                self._taken = self._first()
            else:
                self._taken = self._source.take(position)
        return self._taken

    def _first(self) -> StreamBatch:
        """All that has arrived since ever, without what was skipped; the position says who skipped
        it.
        """
        passed = skipped(self._files, self._appended)
        taken = self._source.take(FilesPosition({file.path: file.content for file in passed}))
        # Noted by the member of a fork whose share it is, also if nothing else has arrived for this
        # one.
        own = [file for file in passed if self._share.has(file.path)]
        after = taken.position if isinstance(taken.position, FilesPosition) else FilesPosition()
        contents = {file.path: file.content for file in own} | after.seen
        reasons = {file.path: file.why for file in own} | after.put_aside
        return (
            replace(taken, position=replace(after, seen=contents, put_aside=reasons))
            if own
            else taken
        )

    def _position(self) -> FilesPosition | KafkaPosition | None:
        before, spec = self._before, self._spec
        if before is None or not goes_on(before, spec.identity, spec.generation, spec.state):
            return None
        self._from = before.path
        try:
            return read_position(self._files, before.path)
        except FileNotFoundError as error:
            raise InputMissing(
                f"the position of a stream is gone: {self._files.uri(before.path)}"
            ) from error

    def is_read_by(self, frame: Any) -> bool:
        """Whether a streaming ``frame`` is made of what has arrived."""
        return self._folder in plan_of(frame)

    def resume(self, name: str, job: str, published: PublishedCheckpoints) -> Resume:
        """From where the query goes on that the output ``name`` is written from.

        Raises: OutputInvalid: another output has the state.
        """
        taken = self.open(published)
        if not self._holds(name, published):
            has = f"{self._holder} has" if self._holder else "its dataset has"
            what = "the state of this stream" if self._holder else "the position of another stream"
            raise OutputInvalid(
                f"the output {name} cannot be written from the stream {self.name}: {has} {what}, "
                "and with state: true one output of a group is written from its stream. Read the "
                "stream in a group for each output, which says output: at its step"
            )
        state = self._before.state if self._before is not None and self._from else None
        before = "" if state is None else state.path
        arrived = self._folder if taken.position is not None else ""
        self._resume = Resume(job, name, self._state, before, arrived)
        return self._resume

    def noted(
        self,
        folder: str,
        outputs: Mapping[str, StagedOutput],
        partition_by: Sequence[str],
        published: PublishedCheckpoints,
    ) -> dict[str, StagedOutput]:
        """The output in ``folder`` and its rejected rows, with the position.

        What was put aside is among the rejected rows of the output that holds it. Others note it,
        so that they go on from there if they are loaded alone one day. Raises: OSError.
        """
        name = folder.rpartition("/")[2]
        if self._taken is None or name not in self._appended:
            return dict(outputs)
        if self._taken.position is None and not self._skips:
            return self._noted_news(outputs, self._taken)
        holds = self._is_written_with_position(name, published)
        if self._skips and holds:
            bad = [entry for entry in self._taken.put_aside if not entry.gone]
            why = BAD_RECORD if self._spec.kind == "kafka" else BAD_FILE
            outputs = with_put_aside(self._files, folder, outputs, bad, partition_by, why)
        if self._taken.position is None:
            return self._noted_news(outputs, self._taken)
        if self._holder is None or (self._spec.state and not holds):
            return dict(outputs)
        self._written |= holds
        at = replace(
            self._at(self._taken, self._taken.position), held_by="" if holds else self._holder
        )
        return {**outputs, folder: replace(outputs[folder], checkpoint=at)}

    def _is_written_with_position(self, name: str, published: PublishedCheckpoints) -> bool:
        """With state, the output of Spark's query holds the position, and no other."""
        if self._spec.state:
            return self._resume is not None and self._resume.output == name
        return self._holds(name, published)

    def _at(self, taken: StreamBatch, position: FilesPosition | KafkaPosition) -> Checkpoint:
        """The position after all that was taken, in its file. Raises: OSError."""
        size = write_position(self._files, self._path, position)
        spec, before, resume = self._spec, self._before, self._resume
        return Checkpoint(
            self._path,
            size,
            spec.identity,
            spec.generation,
            after=before.path if before is not None else "",
            kind=spec.kind,
            counts=dict(taken.counts),
            told=taken.summary,
            adds_to=self._from if self._share.of > 1 else None,
            state=None
            if resume is None
            else PackedState(resume.packed, self._files.size(resume.packed) or 0),
            after_state=before.state.path
            if before is not None and before.state is not None
            else "",
        )

    @staticmethod
    def _noted_news(
        outputs: Mapping[str, StagedOutput], taken: StreamBatch
    ) -> dict[str, StagedOutput]:
        summary = taken.summary if taken.position is None else ""
        return {
            folder: replace(output, nothing_new="" if output.rows else summary)
            for folder, output in outputs.items()
        }

    def _holds(self, name: str, published: PublishedCheckpoints) -> bool:
        """Whether the output ``name`` holds the position; the first that can does."""
        if self._holder is None:
            before = published.checkpoint(name)
            if (
                before is not None
                and before.generation >= self._spec.generation
                and not before.held_by
            ):
                return False  # it holds the position of another stream
            self._holder, self._before = name, before
        return name == self._holder

    def close(self) -> None:
        """Remove the rows that only the steps of this attempt read. Raises: OSError."""
        self._files.remove_tree(self._folder)

    def check(self, outputs: Collection[str]) -> None:
        """Raises: OutputInvalid: one of the ``outputs`` was written, and the one that holds the
        position was not.
        """
        if self._taken is None or self._taken.position is None or self._written or not outputs:
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
