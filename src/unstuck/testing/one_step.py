"""Runs one step alone, with the context of a worker and without a job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstuck.tasks.driver.driver import TABLES
from unstuck.tasks.frames.output import is_any_frame, read_table, stage
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.spec.group import Step
from unstuck.tasks.spec.step_function import check_returned
from unstuck.tasks.steps.context import Scratch, StepContext
from unstuck.tasks.steps.execute import fit, run_step
from unstuck.tasks.steps.step_inputs import Dataset, PublishedDatasets
from unstuck.tasks.steps.work import Work
from unstuck.tasks.time_zone import in_zone
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import StagedOutput
from unstuck.testing.given_rows import Kind, as_kind, rows_of
from unstuck.testing.published_data import new_token
from unstuck.testing.shared_spark import SharedSpark

Results = Mapping[str, dict[str, Any] | list[dict[str, Any]]]


@dataclass(frozen=True)
class StepRun:
    """One run of a step alone.

    Attributes:
        value: what its function returned; None for SQL.
        results: what it recorded with ``ctx.result``.
        progress: what it showed with ``ctx.progress``: pairs of done and total.
    """

    value: Any
    results: Mapping[str, Any]
    progress: Sequence[tuple[float, float | None]]
    _outputs: Mapping[str, StagedOutput] = field(repr=False)
    _files: Files = field(repr=False)
    _spark: Callable[[], Any] = field(repr=False)

    @property
    def outputs(self) -> dict[str, int]:
        """Return the rows of each output, by its name."""
        return {name: output.rows for name, output in self._outputs.items()}

    def rows(
        self, name: str | None = None, *, order_by: str | Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of an output as mappings.

        Args:
            name: of the output; None: the only one.
            order_by: columns; left out: the order in which they were written.

        Raises: KeyError: there is no such output, or several, and no name.
        """
        return rows_of(self.frame(name, "arrow"), order_by)

    def frame(self, name: str | None = None, to: Kind = "pandas") -> Any:
        """Return an output as a frame of pandas (with Arrow types), Arrow, DuckDB or Spark.

        Raises: KeyError: as `rows`; ModuleNotFoundError: the library is not installed.
        """
        names = list(self._outputs) if name is None else [name]
        available = ", ".join(self._outputs) or "none"
        if len(names) != 1:
            raise KeyError(f"the step has the outputs: {available}; name one")
        if (output := self._outputs.get(names[0])) is None:
            raise KeyError(f"the step wrote no output {name!r}; it wrote: {available}")
        if to == "spark":
            return read_parquet(self._spark(), Dataset(names[0], (output,)).by_schema(self._files))
        return as_kind(read_table(self._files, [output]), to)


@dataclass(frozen=True)
class OneStep:
    """Runs a step alone.

    Attributes:
        inputs: by name, Arrow tables or Spark frames.
        results: by group, what ``ctx.results`` answers.
        frames_of: answers the session in which the test reads frames.
        spark: whether it gets a Spark session.
    """

    warehouse: Warehouse
    shared: SharedSpark
    frames_of: Callable[[], Any]
    folder: Path
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    results: Results
    spark: bool

    def call(self, function: Callable[..., Any], output: str | None) -> StepRun:
        """Call ``function``, and stage the frame that it returns. Raises: as `Unstuck.step`."""
        short = getattr(function, "__name__", "step").strip("<>")  # a partial has none; <lambda>
        name = f"{function.__module__}:{getattr(function, '__qualname__', short)}"

        def run(work: Work, ctx: StepContext) -> Any:
            value = function(work.session, ctx, **fit(name, function, work.params, own=set()))
            check_returned(name, value)
            if value is not None and (output or is_any_frame(value)):
                work.write(output or short, value)
            return value

        return self._run("step", run)

    def query(self, sql: str, output: str) -> StepRun:
        """Run one SQL statement. Raises: as `Unstuck.sql`."""
        step = Step(sql=sql, output=output)
        return self._run("sql", lambda work, ctx: run_step(step, work, ctx, (), lambda: None))

    def _run(self, group: str, run: Callable[[Work, StepContext], Any]) -> StepRun:
        token, files = new_token(group), self.warehouse.storage
        files.check()
        inputs = {
            name: Dataset(name, (stage(files, f"{token.staging}.inputs/{name}", frame),))
            for name, frame in self.inputs.items()
        }
        shown: list[tuple[float, float | None]] = []
        secrets = Secrets(dict(os.environ))
        with ExitStack() as stack:
            stack.enter_context(in_zone(self.shared.settings.time_zone))
            session = None
            if self.spark:
                tables = files.uri(f"{token.staging}/{TABLES}")
                self.shared.check()
                session = stack.enter_context(self.shared.driver.attempt(str(token), {}, tables))
            work = Work(
                files=files,
                token=token,
                session=session,
                inputs=inputs,
                secrets=secrets,
                recorded=self.results,
                published=PublishedDatasets(self.warehouse, self.warehouse.head()),
            )
            ctx = StepContext(
                work,
                secrets.resolve(self.params),
                log=logging.getLogger("step"),
                scratch=stack.enter_context(Scratch(self.folder)),
                is_cancelled=lambda: False,
                report=lambda done, total: shown.append((done, total)),
            )
            for name in inputs:
                work.show(name)
            value = run(work, ctx)
            work.check_refused()
        return StepRun(value, work.results, shown, work.outputs, files, self.frames_of)
