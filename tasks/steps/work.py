"""Hold the state that the steps of one attempt share, and check and stage their outputs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.frames.refusals import refused_value
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import GROUP_ID, Token, split_member
from unstuck.tasks.spec.group import MAX_JOB_BYTES, READ_VALUES, fork_bytes
from unstuck.tasks.spec.outputs import REJECTED, Checks, Quality
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.beside import BesidePublished
from unstuck.tasks.steps.error_budget import check_budget
from unstuck.tasks.steps.step_inputs import Dataset, PublishedDatasets
from unstuck.tasks.steps.step_params import Reads, noted
from unstuck.tasks.steps.stream_reading import StreamReading, unknown_stream
from unstuck.tasks.streams.read.structured import is_streaming
from unstuck.tasks.time_zone import zone_here
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput


@dataclass(frozen=True, slots=True)
class OutputRules:
    """How the outputs of a group are written.

    Attributes:
        partition_by: columns by output.
        checks: checks by output.
        beside: the published datasets that outputs must fit; None: no output is published.
        judged_at: the time as of which rows are judged, in seconds since the epoch; None: now.
    """

    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checks: Mapping[str, Checks] = field(default_factory=dict)
    beside: BesidePublished | None = None
    judged_at: float | None = None


@dataclass
class Work:
    """The state that the steps of one attempt share: inputs, and outputs and results so far.

    Attributes:
        session: the Spark session; None for a group without Spark.
        recorded: the results of the groups that it reads; a list of them for a fork.
        sources: versions that the inputs were made from.
        published: None: there is no warehouse log to read.
        stream: None: the group reads no stream.
        refused: errors of outputs that were not written afterwards.
        params: of the step that runs.
        passed_params: parameters that were passed to functions, SQL and checks.
        forks: values of dynamic forks, by output.column.
    """

    files: Files
    token: Token
    session: Any
    inputs: Mapping[str, Dataset]
    secrets: Secrets = field(default_factory=Secrets)
    rules: OutputRules = field(default_factory=OutputRules)
    recorded: Mapping[str, dict[str, Any] | list[dict[str, Any]]] = field(default_factory=dict)
    sources: Mapping[str, list[int]] = field(default_factory=dict)
    published: PublishedDatasets | None = None
    stream: StreamReading | None = None
    outputs: dict[str, StagedOutput] = field(default_factory=dict)
    refused: dict[str, Unrecoverable] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    passed_params: Reads = field(default_factory=Reads)
    results: dict[str, Any] = field(default_factory=dict)
    forks: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def streams(self) -> Collection[str]:
        """The names of the streams that the group reads."""
        return () if self.stream is None else self.stream.streams

    @property
    def rows(self) -> int:
        """Number of rows of all outputs so far, without rejected rows."""
        return sum(output.rows for output in self.outputs.values() if not output.rejected_of)

    def noted_params(self, work_order: WorkOrder) -> dict[str, str] | None:
        """Digests of the parameters on which the work depends, for the marker."""
        return noted(work_order, self.token.job, self.passed_params, self.secrets)

    def read(self, name: str) -> Any:
        """Return an input or an earlier output as a Spark frame, or else as an Arrow table.

        Raises: InputMissing: there is none of this name.
        """
        if self.stream is not None and name in self.stream.streams:
            frame = self.stream.frame(name, self.results)
            return in_zone_of(frame, zone_here()) if self.session is None else frame
        dataset = self.inputs.get(name)
        if name in self.outputs:
            dataset = Dataset(name, (self.outputs[name],))
        if dataset is None:
            available = ", ".join(sorted({*self.inputs, *self.streams, *self.outputs})) or "none"
            raise InputMissing(
                f"there is no input {name!r}; there are: {available}. Does the group need what "
                "makes it?"
            )
        return self.frame(dataset)

    def frame(self, dataset: Dataset) -> Any:
        """Return ``dataset`` in the form that steps get."""
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
        if self.stream is not None:
            by = self.rules.partition_by.get(name, ())
            staged_outputs = self.stream.noted(folder, staged_outputs, by)
        staged = staged_outputs[folder]
        if checks.quality is not None and self.published is not None:
            self._check_budget(name, checks.quality, staged, staged_outputs[folder + REJECTED])
        for output_folder, output in staged_outputs.items():
            self.outputs[output_folder.rpartition("/")[2]] = output
            self.show(output_folder.rpartition("/")[2])
        return staged

    def _check_output_name(self, name: object) -> None:
        """Check the name of an output.

        Raises: OutputInvalid: no output of this name may be written.
        """
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
            by, beside = self.rules.partition_by.get(name, ()), self.rules.beside
            arriving = self._arriving(name, frame)
            published = None if beside is None else beside.types_of(name)
            staged_outputs = stage_checked(
                self.files, folder, frame, checks, by, self.session, arriving, published
            )
            if beside is not None:
                beside.check(name, staged_outputs[folder])
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
            check_budget(
                name, good, rejected, quality, self.published.versions(name), self.rules.judged_at
            )
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
        if self.stream is not None:
            self.stream.end(
                [name for name, output in self.outputs.items() if not output.rejected_of]
            )

    def _arriving(
        self, name: str, frame: Any
    ) -> Callable[[Files, str, Any, Sequence[str]], StagedOutput] | None:
        """Return the function that stages a streaming ``frame``; None for any other frame.

        Raises: OutputInvalid.
        """
        if not is_streaming(frame):
            return None
        if self.stream is None:
            raise unknown_stream(name)
        return self.stream.arriving(name, frame)

    def _checks_of(self, name: str) -> Checks:
        """Return the checks of the output ``name``.

        Raises: OutputInvalid: they cannot be made, or the name is taken.
        """
        try:
            checks = self.rules.checks.get(name, Checks()).resolved(self.params)
        except ValueError as error:
            raise OutputInvalid(f"the output {name}: {error}") from None
        if secret := self.secrets.in_data(checks.partitions):
            raise OutputInvalid(
                f"the output {name} has the value of {secret} in partitions:, which are stored and "
                "shown"
            )
        self._check_rejected_name(name, checks)
        if checks.unique and split_member(self.token.group)[1] is not None:
            raise OutputInvalid(
                f"expect.unique: {name} is made by members of a fork, each of which knows its own "
                "rows alone. Check the keys in a group that needs the fork, or leave unique: out"
            )
        return checks

    def _check_rejected_name(self, name: str, checks: Checks) -> None:
        """Check names of rejected rows.

        Raises: OutputInvalid: one is the name of another output.
        """
        base, rejected = name.removesuffix(REJECTED), f"{name}{REJECTED}"
        if base != name and self.rules.checks.get(base, Checks()).rejects:
            raise OutputInvalid(
                f"the output {name} has the name of the rejected rows of {base}; give it another "
                "one"
            )
        rejects = checks.rejects or (self.stream is not None and self.stream.skips)
        if rejects and rejected in {*self.outputs, *self.inputs, *self.streams}:
            raise OutputInvalid(
                f"the rejected rows of {name} go to {rejected}, and there is such a name already"
            )

    def show(self, name: str) -> None:
        """Create the temporary view ``name``, if the group has Spark."""
        if self.session is not None:
            self.read(name).createOrReplaceTempView(f"`{name}`" if "-" in name else name)
