"""The step context ``ctx``: all that user code sees of Unstuck at run time, so its names must not change.

A step cannot reach Redis, the lease or the files of another attempt through it.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import operator
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
from unstuck.tasks.frames.casts import refused_value
from unstuck.tasks.frames.output import collect, read_table
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.frames.spark import read_parquet
from unstuck.tasks.frames.stream import Resume, is_streaming, open_stream
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import GROUP_ID, Token, split_member
from unstuck.tasks.spec.group import MAX_JOB_BYTES, READ_VALUES, fork_bytes
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.outputs import REJECTED, Checks
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.steps.beside import BesidePublished
from unstuck.tasks.steps.inputs import Dataset, PublishedDatasets
from unstuck.tasks.steps.params import Params, Reads, looked_at, noted
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

MAX_RESULTS = 64 * 1024  # bytes of JSON, of all results of an attempt
MAX_DEPTH = 100  # levels of lists and mappings in a result; what reads and writes it stops at some depth beyond


@dataclass
class Work:
    """The state that the steps of one attempt share: their inputs, and the outputs and results so far.

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
    published: PublishedDatasets | None = None  # None: there is no warehouse log to read
    streams: Mapping[str, StreamInput] = field(default_factory=dict)
    appended: Collection[str] = ()  # outputs that may be written from a stream
    beside: BesidePublished | None = None  # None: no output is published
    outputs: dict[str, StagedOutput] = field(default_factory=dict)
    refused: dict[str, Unrecoverable] = field(default_factory=dict)  # by output, unless it was written after that
    params: Mapping[str, Any] = field(default_factory=dict)  # of the step that runs
    given: Reads = field(default_factory=Reads)  # parameters that were given to functions, SQL and checks
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all outputs so far, without rejected ones."""
        return sum(output.rows for output in self.outputs.values() if not output.rejected_of)

    def noted_params(self, order: WorkOrder) -> dict[str, str] | None:
        """Digests of the parameters on which the work depends, for the marker."""
        return noted(order, self.token.job, self.given, self.secrets)

    def read(self, name: str) -> Any:
        """A Spark frame, or an Arrow table in a group without Spark, of an input or an earlier step's output.

        Raises: InputMissing: there is none of this name.
        """
        if name in self.streams:
            return open_stream(self.session, name, self.streams[name])
        dataset = Dataset(name, (self.outputs[name],)) if name in self.outputs else self.inputs.get(name)
        if dataset is None:
            there = ", ".join(sorted({*self.inputs, *self.streams, *self.outputs})) or "none"
            raise InputMissing(f"there is no input {name!r}; there are: {there}. Does the group need what makes it?")
        return self.frame(dataset)

    def frame(self, dataset: Dataset) -> Any:
        """``dataset`` as steps get it."""
        if self.session is None:
            return read_table(self.files, list(dataset.parts))
        return read_parquet(self.session, dataset.by_schema(self.files))

    def results_of(self, group: str) -> dict[str, Any] | list[dict[str, Any]]:
        """The results of ``group``. Raises: InputMissing: this group does not read it."""
        if group not in self.recorded:
            there = ", ".join(sorted(self.recorded)) or "none"
            raise InputMissing(
                f"there are no results of a group {group!r}; there are those of: {there}. Name it in needs:"
            )
        return copy.deepcopy(self.recorded[group])

    def write(self, name: str, frame: Any) -> StagedOutput:
        """Stage ``frame`` as the output ``name``, and show it to later steps under that name.

        Raises:
            OutputInvalid: the name cannot be one, was written already, a name holds a secret, or the frame cannot be
                stored.
            RuleInvalid, TooManyRejectedRows, RowsOutside, ExpectationFailed: its rows are not what the spec asks for.
            SchemaMismatch: its columns cannot stand beside those that are published.
        """
        if not isinstance(name, str) or "-" in name or GROUP_ID.fullmatch(name) is None or name.endswith("]"):
            raise OutputInvalid(f"an output wants a name of letters, digits and _ (at most 63), not {name!r}")
        if name in self.outputs:
            raise OutputInvalid(f"the output {name} was written twice; write it once, or give the second another name")
        if name in self.inputs or name in self.streams:
            raise OutputInvalid(f"the output {name} has the name of an input of this group; give it another one")
        if secret := self.secrets.in_name(name):
            raise OutputInvalid(f"an output has the value of {secret} in its name, and names are stored and shown")
        checks = self._checks_of(name)
        folder = f"{self.token.staging}/{name}"
        try:
            made = stage_checked(
                *(self.files, folder, frame, checks, self.partition_by.get(name, ()), self.session),
                *(self._resume(name, frame), self.beside.types_of(name) if self.beside else None),
            )
            staged = made[folder]
            if self.beside is not None:
                self.beside.check(name, staged)
        except (RuleInvalid, TooManyRejectedRows, RowsOutside, ExpectationFailed, SchemaMismatch) as error:
            self.refused[name] = error
            raise
        except Exception as error:
            if not (why := refused_value(error)):
                raise
            self.refused[name] = OutputInvalid(f"the output {name}: {why}")
            raise self.refused[name] from error
        self.refused.pop(name, None)
        if secret := self._in_columns(json.loads(staged.schema)):
            for one in made:
                self.files.remove_tree(one)
            raise OutputInvalid(
                f"the output {name} has the value of {secret} in the name or the metadata of a column, and both are "
                "stored and shown. Rename the column"
            )
        reach(Point.AFTER_OUTPUT, self.token.job)
        for one, output in made.items():
            self.outputs[one.rpartition("/")[2]] = output
            self.show(one.rpartition("/")[2])
        return staged

    def _in_columns(self, schema: Any) -> str | None:
        """The first secret in the names of the columns and fields of a schema, or in what is noted beside them."""
        if isinstance(schema, list):
            return next(filter(None, map(self._in_columns, schema)), None)
        if not isinstance(schema, dict):
            return None  # the name of a type
        found = self.secrets.in_name(schema.get("name", "")) or self.secrets.in_data(schema.get("metadata"))
        return found or self._in_columns([part for key, part in schema.items() if key != "metadata"])

    def fork_values(self, order: WorkOrder) -> dict[str, list[Any]]:
        """The values that dynamic forks wait for, by ``output.column``.

        Raises:
            ForkValuesInvalid: they cannot be those of a fork, or one holds a secret.
        """
        forks: dict[str, list[Any]] = {}
        room = MAX_JOB_BYTES
        for wanted in order.plan.collect:
            found = self.outputs.get(wanted.output)
            own = [output for output in self.outputs.values() if not output.rejected_of]
            if found is None and wanted.output == order.group.name and len(own) == 1:
                (found,) = own
            if order.group.code_version == READ_VALUES:
                (found,) = self.inputs[wanted.output].parts  # a published dataset has one
            if found is not None:
                values = forks[wanted.key] = collect(self.files, found, wanted, room)
                if secret := self.secrets.in_data(values):
                    raise ForkValuesInvalid(
                        f"a value of {wanted.key} holds the value of {secret}, and the values of a fork are stored "
                        "and shown. Fork over another column, which names what is meant"
                    )
                room -= fork_bytes(values)
        return forks

    def check_refused(self) -> None:
        """Raise again what a step has caught: an output whose rows were refused must not just be left out."""
        for error in self.refused.values():
            raise error

    def _resume(self, name: str, frame: Any) -> Resume | None:
        """Where the stream goes on that ``frame`` reads; None if it reads none. Raises: OutputInvalid."""
        if not is_streaming(frame):
            return None
        if not self.streams:
            raise OutputInvalid(f"the output {name} reads a stream that is no input of the group; name it in inputs:")
        if name not in self.appended:
            raise OutputInvalid(
                f"the output {name} reads a stream, and is not published by appending to a dataset of the warehouse. "
                f"Say outputs: {{{name}: {{mode: append}}}}, and name it under publish: if other groups need this one"
            )
        assert self.published is not None
        (stream,) = self.streams.values()
        folder = f"{self.token.staging}/{name}.checkpoint"
        return Resume(self.token.job, folder, self.published.checkpoint(name), stream.stream, stream.generation)

    def _checks_of(self, name: str) -> Checks:
        """The checks of the output ``name``. Raises: OutputInvalid: they cannot be made, or the name is taken."""
        try:
            checks = self.checks.get(name, Checks()).resolved(self.params)
        except ValueError as error:
            raise OutputInvalid(f"the output {name}: {error}") from None
        if secret := self.secrets.in_data(checks.partitions):
            raise OutputInvalid(
                f"the output {name} has the value of {secret} in partitions:, which are stored and shown"
            )
        base = name.removesuffix(REJECTED)
        if base != name and base in self.checks and self.checks[base].rejects:
            raise OutputInvalid(f"the output {name} has the name of the rejected rows of {base}; give it another one")
        rejected = f"{name}{REJECTED}"
        if checks.rejects and (rejected in {*self.outputs, *self.inputs, *self.streams}):
            raise OutputInvalid(f"the rejected rows of {name} go to {rejected}, and there is such a name already")
        if checks.unique and split_member(self.token.group)[1] is not None:
            raise OutputInvalid(
                f"expect.unique: {name} is made by members of a fork, each of which knows its own rows alone. Check "
                "the keys in a group that needs the fork, or leave unique: out"
            )
        return checks

    def show(self, name: str) -> None:
        """Make ``name`` a temp view, where there is Spark."""
        if self.session is not None:
            self.read(name).createOrReplaceTempView(f"`{name}`" if "-" in name else name)


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """Where one output goes."""

    name: str
    _write: Callable[[str, Any], StagedOutput]

    def write(self, frame: Any) -> int:
        """Stage a Spark, Arrow or pandas frame as this output; once. Answers its rows.

        Raises:
            OutputInvalid: written twice, or a frame that cannot be stored.
            RuleInvalid, TooManyRejectedRows, RowsOutside, ExpectationFailed: its rows are not what the spec asks for.
        """
        return self._write(self.name, frame).rows


class Scratch:
    """A folder of this machine, made when it is first asked for and removed at the end of the block."""

    def __init__(self, parent: Path) -> None:
        """``parent`` is made as well, and stays."""
        # The name is made at once: a child that a step forks has the same folder.
        self._path = parent / f"scratch-{secrets.token_hex(4)}"

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path.exists():
            shutil.rmtree(self._path, ignore_errors=True)

    @property
    def folder(self) -> Path:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._path.mkdir(mode=0o700, exist_ok=True)
        return self._path


class StepContext:
    """``ctx`` of one step.

    Attributes:
        params: the job's, the group's, the fork's and the step's own parameters, with references resolved; read-only.
        token: ``job/group/epoch/nonce/claimant``; an idempotency key for what a step does elsewhere.
        log: a standard logger; its lines are in ``unstuck logs``.
    """

    def __init__(
        self,
        work: Work,
        params: Mapping[str, Any],
        *,
        log: logging.Logger,
        scratch: Scratch,
        is_cancelled: Callable[[], bool],
        report: Callable[[float, float | None], None],
    ) -> None:
        self.params = Params(params, looked_at(work.token.job))
        work.params = Params(params, work.given)
        self.token = str(work.token)
        self.log = log
        self._scratch = scratch
        self._work = work
        self._is_cancelled = is_cancelled
        self._report = report
        self._warned = False

    @property
    def scratch(self) -> Path:
        """A folder of this machine that is removed when the attempt has ended."""
        return self._scratch.folder

    @property
    def warehouse(self) -> str:
        """The address of the job's warehouse, as `published_files` takes it."""
        return self._work.files.uri("")

    @property
    def cancelled(self) -> bool:
        """True once this attempt should end: canceled, timed out, handed back or taken over. Poll it in long loops."""
        return self._is_cancelled()

    def input(self, name: str) -> Any:
        """An output of a needed group or of an earlier step, or an input of the group.

        The value is a Spark frame, and for a stream a streaming frame. With ``spark: false`` it is an Arrow table.

        Raises:
            InputMissing: there is none of this name.
        """
        return self._work.read(name)

    def published(self, name: str, version: int | None = None) -> Any:
        """A published dataset, from the warehouse of this job: a Spark frame; an Arrow table if ``spark: false``.

        Args:
            version: of the warehouse; None: the newest one when the job was submitted, whatever is published since.

        Raises:
            DatasetNotFound: it was not published then. The group fails, and is not tried again.
        """
        assert self._work.published is not None
        return self._work.frame(self._work.published.read(name, version))

    def results(self, group: str) -> Any:
        """The results of a needed group, by key, as ``result`` recorded them. Empty if the group did not succeed.

        Of a fork it is a list, with one mapping for each member that succeeded, in their order.

        Raises:
            InputMissing: this group does not need one of this name.
        """
        return self._work.results_of(group)

    def output(self, name: str) -> OutputSlot:
        """The place to ``write`` the output ``name`` to."""
        return OutputSlot(name, self._work.write)

    def result(self, key: str, value: Any) -> None:
        """Keep a small JSON value with the attempt's outcome: shown with the job, and seen by conditions (``when:``).

        Numbers and booleans of numpy and its like are taken as Python's.

        Raises:
            OutputInvalid: it is not JSON, it holds a secret, or all results together are over 64 KiB.
        """
        results = {**self._work.results, str(key): value}
        try:
            text = json.dumps(results, allow_nan=False, default=_plain)
            kept = json.loads(text)
            json.dumps(kept, ensure_ascii=False).encode()  # half a character cannot be written down
            if _depth(kept) > MAX_DEPTH + 1:
                raise ValueError(f"more than {MAX_DEPTH} lists and mappings in one another")
        except (TypeError, ValueError, RecursionError) as error:
            raise OutputInvalid(
                f"the result {key!r} is not a JSON value: {error}. Expected: text, a finite number, true, false, none, "
                "or a list or mapping of these. Cast what it holds, as with float(), str() or list()"
            ) from error
        if secret := self._work.secrets.in_data({str(key): kept[str(key)]}):
            raise OutputInvalid(
                f"the result {key!r} holds the value of {secret}, and results are stored and shown. Record what names "
                "the secret instead"
            )
        if len(text) > MAX_RESULTS:
            raise OutputInvalid(
                f"with {key!r} the results of this attempt are over {MAX_RESULTS // 1024} KiB; write a frame instead"
            )
        self._work.results = kept

    def progress(self, done: float, total: float | None = None) -> None:
        """Show how far this step is. Cheap: the last value travels with the next renewal of the lease.

        Any number will do, also of numpy, Decimal or Fraction. A total of None, of 0 or below, or without end is not
        known. What is no number is not shown, and the log says so once: it never fails the step.
        """
        number, whole = _number(done), None if total is None else _number(total)
        countable = number is not None and math.isfinite(number)
        wrong = [] if countable else [f"done={_named(done)}"]
        if total is not None and whole is None:
            wrong.append(f"total={_named(total)}")
        if wrong and not self._warned:
            self._warned = True
            said = "ctx.progress wants numbers and got %s, which is not shown. The step goes on; this is said once"
            self.log.warning(said, ", ".join(wrong))
        if number is not None and countable:
            self._report(number, whole if whole is not None and 0 < whole < math.inf else None)


def _number(value: Any) -> int | float | None:
    """``value`` as Python has numbers, perhaps infinite; None for what is none, or beyond what a float holds."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        try:
            number: int | float = int(operator.index(value))
        except TypeError:
            number = float(value)
        return None if math.isnan(number) else number  # OverflowError: a whole number that no bar can be drawn of
    except Exception:  # noqa: BLE001 - a class of somebody's own may raise what it likes, and this must fail no step
        return None


def _plain(value: Any) -> Any:
    """A scalar of numpy, or of a library that follows it, as Python's own. Raises: TypeError: it is none."""
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        scalar = value.item()
        if isinstance(scalar, str | int | float):
            return scalar
    raise TypeError(f"it holds a {type(value).__qualname__}")


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _named(value: Any) -> str:
    return repr(value)[:60] if type(value) in (str, bytes, float) else f"({type(value).__qualname__})"
