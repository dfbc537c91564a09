"""Hold the state that the steps of one attempt share, and check and stage their outputs."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from unstuck.tasks.errors import (
    ExpectationFailed,
    ForkValuesInvalid,
    InputMissing,
    OutputInvalid,
    RowsOutside,
    RuleInvalid,
    SchemaMismatch,
    TooManyRejectedRows,
    Unrecoverable,
)
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.frames.columns import in_zone_of
from unstuck.tasks.frames.output import collect, read_table
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.frames.refusals import refused_value
from unstuck.tasks.frames.spark import read_parquet
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import GROUP_ID, Token, split_member
from unstuck.tasks.spec.group import MAX_JOB_BYTES, READ_VALUES, fork_bytes
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import REJECTED, Checks, Quality
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.beside import BesidePublished
from unstuck.tasks.steps.error_budget import check_budget
from unstuck.tasks.steps.step_inputs import Dataset, PublishedDatasets
from unstuck.tasks.steps.step_params import Reads, noted
from unstuck.tasks.streams.arrived.fork_share import WHOLE, Share
from unstuck.tasks.streams.read.arriving_files import ArrivingFiles
from unstuck.tasks.streams.read.group_stream import GroupStream, Reader, Source
from unstuck.tasks.streams.read.kafka_read import KafkaTopic
from unstuck.tasks.streams.read.structured import is_remote, is_streaming, stage_stream
from unstuck.tasks.time_zone import zone_here
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

log = logging.getLogger(__name__)


@dataclass
class Work:
    """The state that the steps of one attempt share: inputs, and outputs and results so far.

    ``recorded``: the results of the groups that it reads; a list of them for a fork.
    """

    files: Files
    token: Token
    session: Any  # the Spark session; None for a group without Spark
    inputs: Mapping[str, Dataset]
    secrets: Secrets = field(default_factory=Secrets)
    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by output
    checks: Mapping[str, Checks] = field(default_factory=dict)  # by output
    recorded: Mapping[str, dict[str, Any] | list[dict[str, Any]]] = field(default_factory=dict)
    sources: Mapping[str, list[int]] = field(
        default_factory=dict
    )  # versions that the inputs were made from
    published: PublishedDatasets | None = None  # None: there is no warehouse log to read
    streams: Mapping[str, StreamInput | KafkaInput] = field(default_factory=dict)
    share: Share = WHOLE  # of the streams
    appended: Collection[str] = ()  # outputs that may be written from a stream
    beside: BesidePublished | None = None  # None: no output is published
    outputs: dict[str, StagedOutput] = field(default_factory=dict)
    refused: dict[str, Unrecoverable] = field(
        default_factory=dict
    )  # by output, unless it was written after that
    params: Mapping[str, Any] = field(default_factory=dict)  # of the step that runs
    passed_params: Reads = field(
        default_factory=Reads
    )  # parameters that were given to functions, SQL and checks
    results: dict[str, Any] = field(default_factory=dict)
    forks: dict[str, list[Any]] = field(
        default_factory=dict
    )  # values of dynamic forks, by output.column
    _stream: GroupStream | None = None  # once it was read
    _streaming: Lock = field(
        default_factory=Lock
    )  # a step may read and write in threads of its own

    @property
    def rows(self) -> int:
        """Rows of all outputs so far, without rejected ones."""
        return sum(output.rows for output in self.outputs.values() if not output.rejected_of)

    def noted_params(self, work_order: WorkOrder) -> dict[str, str] | None:
        """Digests of the parameters on which the work depends, for the marker."""
        return noted(work_order, self.token.job, self.passed_params, self.secrets)

    def read(self, name: str) -> Any:
        """Return an input or an earlier output as a Spark frame, or else as an Arrow table.

        Raises: InputMissing: there is none of this name.
        """
        if name in self.streams:
            return self._arrived(name)
        dataset = (
            Dataset(name, (self.outputs[name],)) if name in self.outputs else self.inputs.get(name)
        )
        if dataset is None:
            available = ", ".join(sorted({*self.inputs, *self.streams, *self.outputs})) or "none"
            raise InputMissing(
                f"there is no input {name!r}; there are: {available}. Does the group need what "
                "makes it?"
            )
        return self.frame(dataset)

    def _arrived(self, name: str) -> Any:
        """The frame of the stream ``name``, whose counts are a result of the group."""
        stream = self.streams[name]
        assert self.published is not None
        with self._streaming:
            if self._stream is None:
                self._stream = GroupStream(
                    name,
                    self._source(name, stream),
                    self.files,
                    self.token.staging,
                    self.appended,
                    self.published,
                    skips=stream.skips,
                    share=self.share,
                )
                self.results[name] = dict(self._stream.batch.counts)
                log.info("the stream %s: %s", name, self._stream.batch.summary)
            frame = self._stream.batch.frame
        return in_zone_of(frame, zone_here()) if self.session is None else frame

    def _source(self, name: str, stream: StreamInput | KafkaInput) -> Source:
        if stream.state and is_remote(self.session):
            raise Unrecoverable(
                f"the input {name} is a stream, with state: true, which is not supported with "
                "Spark Connect yet"
            )
        reader = Reader(
            self.session, self.files, f"{self.token.staging}/{name}.arrived", self.share
        )
        if isinstance(stream, StreamInput):
            return ArrivingFiles(stream, reader)
        return KafkaTopic(stream, reader, self.secrets.resolve(stream.options))

    def frame(self, dataset: Dataset) -> Any:
        """``dataset`` as steps get it."""
        if self.session is None:
            return in_zone_of(read_table(self.files, list(dataset.parts)), zone_here())
        return read_parquet(self.session, dataset.by_schema(self.files))

    def results_of(self, group: str) -> dict[str, Any] | list[dict[str, Any]]:
        """The results of ``group``. Raises: InputMissing: this group does not read it."""
        if group not in self.recorded:
            available = ", ".join(sorted(self.recorded)) or "none"
            raise InputMissing(
                f"there are no results of a group {group!r}; there are those of: {available}. "
                "Name it in needs:"
            )
        return copy.deepcopy(self.recorded[group])

    def write(self, name: str, frame: Any) -> StagedOutput:
        """Stage ``frame`` as the output ``name``, and show it to later steps under that name.

        Raises:
            OutputInvalid: the name cannot be one, was written already, a name holds a secret, or
                the frame cannot be stored.
            RuleInvalid, TooManyRejectedRows, RowsOutside, ExpectationFailed: its rows are not what
                the spec asks for.
            SchemaMismatch: its columns cannot stand beside those that are published.
        """
        self._check_output_name(name)
        checks = self._checks_of(name)
        folder = f"{self.token.staging}/{name}"
        staged_outputs = self._stage(name, folder, frame, checks)
        self.refused.pop(name, None)
        if secret := self._in_columns(json.loads(staged_outputs[folder].schema)):
            for output_folder in staged_outputs:
                self.files.remove_tree(output_folder)
            raise OutputInvalid(
                f"the output {name} has the value of {secret} in the name or the metadata of a "
                "column, and both are stored and shown. Rename the column"
            )
        reach(Point.AFTER_OUTPUT, self.token.job)
        if self._stream is not None:
            with self._streaming:
                staged_outputs = self._stream.noted(
                    folder, staged_outputs, self.partition_by.get(name, ())
                )
        staged = staged_outputs[folder]
        if checks.quality is not None and self.published is not None:
            self._check_budget(name, checks.quality, staged, staged_outputs[folder + REJECTED])
        for output_folder, output in staged_outputs.items():
            self.outputs[output_folder.rpartition("/")[2]] = output
            self.show(output_folder.rpartition("/")[2])
        return staged

    def _check_output_name(self, name: object) -> None:
        """Raises: OutputInvalid: no output of this name may be written."""
        if (
            not isinstance(name, str)
            or "-" in name
            or GROUP_ID.fullmatch(name) is None
            or name.endswith("]")
        ):
            raise OutputInvalid(
                f"an output wants a name of letters, digits and _ (at most 63), not {name!r}"
            )
        if name in self.outputs:
            raise OutputInvalid(
                f"the output {name} was written twice; write it once, or give the second another "
                "name"
            )
        if name in self.inputs or name in self.streams:
            raise OutputInvalid(
                f"the output {name} has the name of an input of this group; give it another one"
            )
        if secret := self.secrets.in_name(name):
            raise OutputInvalid(
                f"an output has the value of {secret} in its name, and names are stored and shown"
            )

    def _stage(self, name: str, folder: str, frame: Any, checks: Checks) -> dict[str, StagedOutput]:
        """Stage ``frame`` in ``folder``, and check it.

        Returns: the output by its folder; if it has rules, also its rejected rows.

        Raises: as `write`; the error is kept in ``refused`` if the frame is to blame.
        """
        try:
            by, arriving = self.partition_by.get(name, ()), self._arriving(name, frame)
            published = self.beside.types_of(name) if self.beside else None
            staged_outputs = stage_checked(
                self.files, folder, frame, checks, by, self.session, arriving, published
            )
            if self.beside is not None:
                self.beside.check(name, staged_outputs[folder])
        except (
            RuleInvalid,
            TooManyRejectedRows,
            RowsOutside,
            ExpectationFailed,
            SchemaMismatch,
        ) as error:
            self.refused[name] = error
            raise
        except Exception as error:
            if not (why := refused_value(error)):
                raise
            self.refused[name] = OutputInvalid(f"the output {name}: {why}")
            raise self.refused[name] from error
        return staged_outputs

    def _check_budget(
        self, name: str, quality: Quality, good: StagedOutput, rejected: StagedOutput
    ) -> None:
        """Check the rejected rows of several runs together.

        Raises: TooManyRejectedRows; LogBroken, WarehouseNewer, OSError: the log could not be read.
        """
        assert self.published is not None
        try:
            check_budget(name, good, rejected, quality, self.published.versions(name), time.time())
        except TooManyRejectedRows as error:
            self.refused[name] = error
            raise

    def _in_columns(self, schema: Any) -> str | None:
        """Return the first secret in the names or metadata of the fields of a schema."""
        if isinstance(schema, list):
            return next(filter(None, map(self._in_columns, schema)), None)
        if not isinstance(schema, dict):
            return None  # the name of a type
        secret = self.secrets.in_name(schema.get("name", "")) or self.secrets.in_data(
            schema.get("metadata")
        )
        return secret or self._in_columns(
            [part for key, part in schema.items() if key != "metadata"]
        )

    def fork_values(self, work_order: WorkOrder) -> dict[str, list[Any]]:
        """The values that dynamic forks wait for, by ``output.column``.

        Raises:
            ForkValuesInvalid: they cannot be those of a fork, or one holds a secret.
        """
        forks: dict[str, list[Any]] = {}
        room = MAX_JOB_BYTES
        for source in work_order.plan.collect:
            staged = self.outputs.get(source.output)
            own = [output for output in self.outputs.values() if not output.rejected_of]
            if staged is None and source.output == work_order.group.name and len(own) == 1:
                (staged,) = own
            if work_order.group.code_version == READ_VALUES:
                (staged,) = self.inputs[source.output].parts  # a published dataset has one
            if staged is not None:
                values = forks[source.key] = collect(self.files, staged, source, room)
                if secret := self.secrets.in_data(values):
                    raise ForkValuesInvalid(
                        f"a value of {source.key} holds the value of {secret}, and the values of a "
                        "fork are stored and shown. Fork over another column, which names what is "
                        "meant"
                    )
                room -= fork_bytes(values)
        return forks

    def check_refused(self) -> None:
        """Raise errors of refused outputs again, since a step may have caught them.

        Raises: also OutputInvalid: the position of a stream would be lost.
        """
        for error in self.refused.values():
            raise error
        if self._stream is not None:
            self._stream.check(
                [name for name, output in self.outputs.items() if not output.rejected_of]
            )
            self._stream.close()

    def _arriving(
        self, name: str, frame: Any
    ) -> Callable[[Files, str, Any, Sequence[str]], StagedOutput] | None:
        """Return the function that stages a streaming ``frame``; None for any other frame.

        Raises: OutputInvalid.
        """
        if not is_streaming(frame):
            return None
        if self._stream is None or not self._stream.is_read_by(frame):
            raise OutputInvalid(
                f"the output {name} reads a stream that is no input of the group; name it in "
                "inputs:, with state: true"
            )
        if name not in self.appended:
            raise OutputInvalid(
                f"the output {name} reads a stream, and is not published by appending to a dataset "
                f"of the warehouse. Say outputs: {{{name}: {{mode: append}}}}, and name it under "
                "publish: if other groups need this one"
            )
        with self._streaming:
            return partial(stage_stream, resume=self._stream.resume(name, self.token.job))

    def _checks_of(self, name: str) -> Checks:
        """Return the checks of the output ``name``.

        Raises: OutputInvalid: they cannot be made, or the name is taken.
        """
        try:
            checks = self.checks.get(name, Checks()).resolved(self.params)
        except ValueError as error:
            raise OutputInvalid(f"the output {name}: {error}") from None
        if secret := self.secrets.in_data(checks.partitions):
            raise OutputInvalid(
                f"the output {name} has the value of {secret} in partitions:, which are stored and "
                "shown"
            )
        base = name.removesuffix(REJECTED)
        if base != name and base in self.checks and self.checks[base].rejects:
            raise OutputInvalid(
                f"the output {name} has the name of the rejected rows of {base}; give it another "
                "one"
            )
        rejected = f"{name}{REJECTED}"
        rejects = checks.rejects or any(stream.skips for stream in self.streams.values())
        if rejects and (rejected in {*self.outputs, *self.inputs, *self.streams}):
            raise OutputInvalid(
                f"the rejected rows of {name} go to {rejected}, and there is such a name already"
            )
        if checks.unique and split_member(self.token.group)[1] is not None:
            raise OutputInvalid(
                f"expect.unique: {name} is made by members of a fork, each of which knows its own "
                "rows alone. Check the keys in a group that needs the fork, or leave unique: out"
            )
        return checks

    def show(self, name: str) -> None:
        """Make ``name`` a temp view, where there is Spark."""
        if self.session is not None:
            self.read(name).createOrReplaceTempView(f"`{name}`" if "-" in name else name)
