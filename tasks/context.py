"""The step context ``ctx``: what a step may ask of the attempt that runs it.

It is the whole of what user code sees of Unstuck at run time, so names here are promises. It never lets a step
reach the store, the lease or another attempt's files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import InputMissing, OutputInvalid
from tasks.filesystem import Files
from tasks.inputs import Dataset
from tasks.marker import StagedOutput
from tasks.output import read_table, stage
from tasks.points import Point, reach
from tasks.spark import read_parquet
from tasks.token import GROUP_ID, Token

MAX_RESULTS = 64 * 1024  # bytes of JSON, of all results of an attempt


@dataclass
class Work:
    """What the steps of one attempt have in common: what they read, and what they have made so far."""

    files: Files
    token: Token
    session: Any  # the Spark session; None for a group without Spark
    inputs: Mapping[str, Dataset]
    outputs: dict[str, StagedOutput] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """A Spark frame, or an Arrow table in a group without Spark, of an input or an earlier step's output.

        Raises:
            InputMissing: there is none of this name.
        """
        dataset = Dataset(name, (self.outputs[name],)) if name in self.outputs else self.inputs.get(name)
        if dataset is None:
            there = ", ".join(sorted({*self.inputs, *self.outputs})) or "none"
            raise InputMissing(f"there is no input {name!r}; there are: {there}. Does the group need what makes it?")
        if self.session is None:
            return read_table(self.files, list(dataset.parts))
        return read_parquet(self.session, dataset.by_schema(self.files))

    def write(self, name: str, frame: Any) -> StagedOutput:
        """Stage ``frame`` as the output ``name``, and show it to later steps under that name.

        Raises:
            OutputInvalid: the name cannot be one, was written already, or the frame cannot be stored.
        """
        if "-" in name or GROUP_ID.fullmatch(name) is None or name.endswith("]"):
            raise OutputInvalid(f"an output wants a name of letters, digits and _ (at most 63), not {name!r}")
        if name in self.outputs:
            raise OutputInvalid(f"the output {name} was written twice; write it once, or give the second another name")
        if name in self.inputs:
            raise OutputInvalid(f"the output {name} has the name of an input of this group; give it another one")
        staged = stage(self.files, f"{self.token.staging}/{name}", frame)
        reach(Point.AFTER_OUTPUT, self.token.job)
        self.outputs[name] = staged
        self.show(name)
        return staged

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
        """
        return self._write(self.name, frame).rows


class StepContext:
    """``ctx`` of one step.

    Attributes:
        params: the job's, the group's, the fork's and the step's own parameters, with secrets resolved.
        token: ``job/group/epoch/nonce/claimant``; an idempotency key for what a step does elsewhere.
        log: a standard logger; its lines are in ``unstuck logs``.
        scratch: a folder of this machine that is removed when the attempt has ended.
    """

    def __init__(
        self,
        work: Work,
        params: Mapping[str, Any],
        *,
        log: logging.Logger,
        scratch: Path,
        is_cancelled: Callable[[], bool],
        report: Callable[[float, float | None], None],
    ) -> None:
        self.params = dict(params)
        self.token = str(work.token)
        self.log = log
        self.scratch = scratch
        self._work = work
        self._is_cancelled = is_cancelled
        self._report = report

    @property
    def cancelled(self) -> bool:
        """True once this attempt should end: canceled, timed out, handed back or taken over. Poll it in long loops."""
        return self._is_cancelled()

    def input(self, name: str) -> Any:
        """An output of a needed group, or of an earlier step: a Spark frame; an Arrow table if ``spark: false``.

        Raises:
            InputMissing: there is none of this name.
        """
        return self._work.read(name)

    def output(self, name: str) -> OutputSlot:
        """The place to ``write`` the output ``name`` to."""
        return OutputSlot(name, self._work.write)

    def result(self, key: str, value: Any) -> None:
        """Keep a small JSON value with the attempt's outcome: shown with the job, and seen by conditions (``when:``).

        Raises:
            OutputInvalid: it is not JSON, or all results together are over 64 KiB.
        """
        results = {**self._work.results, str(key): value}
        try:
            text = json.dumps(results, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OutputInvalid(f"the result {key!r} is not a JSON value: {error}") from error
        if len(text.encode()) > MAX_RESULTS:
            raise OutputInvalid(
                f"with {key!r} the results of this attempt are over {MAX_RESULTS // 1024} KiB; write a frame instead"
            )
        self._work.results = json.loads(text)

    def progress(self, done: float, total: float | None = None) -> None:
        """Show how far this step is. Cheap: the last value travels with the next renewal of the lease."""
        self._report(done, total)
