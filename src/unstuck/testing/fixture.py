"""The fixture ``unstuck`` for tests of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.in_process.attempts import Failing
from unstuck.in_process.run_job import InProcess
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.steps.step_inputs import published
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow
from unstuck.testing.arrivals import ArrivalQueue
from unstuck.testing.given_rows import Kind, as_kind, frame_of, rows_of
from unstuck.testing.one_step import OneStep, Results, StepRun
from unstuck.testing.published_data import Mode, publish_frame
from unstuck.testing.runs import JobRun, TickRun
from unstuck.testing.shared_spark import SharedSpark
from unstuck.testing.specs import SpecSelection, When, job_of, read_spec, tick_at, ticks_between

# A limit of pytest-timeout, or the end of its debugger, is for the test and no failure of the step
# that it meets.
_OF_PYTEST = (pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)


class Unstuck:
    """Runs jobs and steps of one test in this process, on its own warehouse.

    Attributes:
        warehouse: the address of the warehouse, as `published_files` takes it.
    """

    def __init__(
        self, folder: Path, spark: SharedSpark, *, root: Path, tell: Callable[[str], None]
    ) -> None:
        """Create the fixture.

        Args:
            folder: of the test; the warehouse is made in it.
            root: where the paths of specs are looked for, if not in the working folder.
            tell: shows a text if the test fails.
        """
        self._folder, self._spark, self._root, self._tell = folder, spark, root, tell
        self._session: tuple[Driver, Any] | None = None  # with the driver that it is of
        self._arrivals = ArrivalQueue(folder / "arrived")
        self._log = Warehouse(str(folder / "warehouse"))
        self._log.ensure_id()
        self.warehouse = self._log.storage.uri("")

    @property
    def spark(self) -> Any:
        """A Spark session for frames of this test, with its own views.

        A new session replaces it after a step has stopped Spark, or left something on its context.

        Raises: UnstuckError: Spark cannot start on this machine.
        """
        driver = self._spark.driver
        if self._session is None or self._session[0] is not driver:
            self._session = driver, self._spark.session
        return self._session[1]

    # -- data --------------------------------------------------------------------------------------

    def publish(
        self,
        dataset: str,
        rows: Any,
        *,
        schema: str | None = None,
        mode: Mode = "replace",
        partition_by: Sequence[str] = (),
    ) -> int:
        """Publish a dataset for jobs that read it under ``inputs:``. Return the warehouse version.

        Args:
            rows: mappings, or a frame of pandas, Arrow, Spark, Polars or DuckDB.
            schema: its columns and types in SQL, as ``id BIGINT, at TIMESTAMP``; None: those of the
                values. Without rows it must be given.

        Raises:
            TypeError, ValueError: ``rows`` are no rows, or have no columns.
            OutputInvalid: the rows cannot be stored, do not fit the schema, or cannot stand beside
                those of before.
        """
        return publish_frame(
            self._log, dataset, frame_of(rows, schema, about=dataset), mode, partition_by
        )

    def rows(self, dataset: str, *, order_by: str | Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the rows of a published dataset as mappings, at its newest version.

        Args:
            order_by: columns; left out: the order of its files.

        Raises: DatasetNotFound: it is not published.
        """
        return rows_of(self.frame(dataset, "arrow"), order_by)

    def frame(self, dataset: str, to: Kind = "pandas") -> Any:
        """Return a published dataset as a frame of pandas (Arrow types), Arrow, DuckDB or Spark.

        The version is the newest.

        Raises: DatasetNotFound: it is not published; ModuleNotFoundError: the library is not
        installed.
        """
        if to == "spark":
            return published(self.spark, self._log, dataset)
        return as_kind(read_arrow(self._log, dataset), to)

    def arrive(self, stream: str, rows: Any, *, file: str | None = None) -> None:
        """Let a file arrive for a stream of the next job, in the format of its spec.

        Each stream of files becomes a folder of this test.

        Each stream of files is a folder of this test, in the place of that in the spec.

        Args:
            stream: the name of the input, alone or behind its group (``load.events``), or its
                address.
            rows: mappings, lines, or a frame of pandas or Arrow; or the content of the file, as
                text or bytes, or its path.
            file: its name; None: that of the path, or one that no other file has.

        Raises:
            TypeError: ``rows`` are no rows.
            OSError: the file cannot be read.
        """
        self._arrivals.add(stream, rows, file)

    def table(self, rows: Any, schema: str | None = None) -> Any:
        """Return rows as an Arrow table with these columns and types, for example without rows.

        Raises: as `publish`.
        """
        return frame_of(rows, schema)

    # -- jobs --------------------------------------------------------------------------------------

    def run(
        self,
        spec: Spec,
        params: Mapping[str, Any] | None = None,
        *,
        only: str | Collection[str] = (),
        from_: str | Collection[str] = (),
        until: str | Collection[str] = (),
        fail: Failing | None = None,
        times: int = 1,
    ) -> JobRun:
        """Run a job in this process until it ends or cannot continue. Retries do not wait.

        Args:
            spec: a job in Python, ``module:job``, the path of a file, a `JobSpec`, or a mapping as
                a file has it.
            params: values of its parameters.
            only, from_, until: the groups that run, if not all: these, these with what comes after
                them, these with what comes before them; by name or pattern. They read what is
                published of the others.
            fail: by group, or by member of a fork as ``by_region[2]``, an error that its first
                ``times`` attempts raise before their steps. The name of a fork means each member.

        Raises:
            SpecError: the spec or ``params`` are wrong.
            NoSuchGroup: a name fits no group.
            BadRequest: a selected group reads an output of a group that is left out, and
                nobody has published that output; or a group needs a fleet.
            ValueError: something has arrived for a stream that the job does not have.
            NotImplementedError: the job reads Kafka.
            UnstuckError: this machine lacks what the job needs.
        """
        job = read_spec(spec, params or {}, self._root)
        selection = SpecSelection.of(only, from_, until)
        return self._run(job, selection, fail=fail, times=times)

    def at(self, when: When, spec: Spec, params: Mapping[str, Any] | None = None) -> TickRun:
        """Return the run of a schedule that is due at a moment: its tick and its parameters.

        Args:
            when: as ``2026-03-29 02:30``, on the clock of the schedule's zone. The newest tick up
                to then counts.
            spec, params: as for `run`.

        Raises:
            SpecError: as `run`.
            ValueError: the job has no schedule, or no tick up to then; or ``when`` is no time.
        """
        scheduled = self._scheduled(spec, params or {})
        tick = tick_at(scheduled, when)
        job = job_of(scheduled, tick)
        return TickRun(tick, job.values, partial(self._run, job, now=tick))

    def ticks(self, spec: Spec, first: When, end: When) -> list[datetime]:
        """Return the ticks of a schedule from ``first`` to before ``end``, in its zone.

        Raises:
            SpecError: the spec is wrong.
            ValueError: as `at`.
        """
        return ticks_between(self._scheduled(spec, {}), first, end)

    def _scheduled(self, spec: Spec, params: Mapping[str, Any]) -> JobSpec:
        """Return a spec with its schedule, as if set in a fleet with the time zone of the tests."""
        return read_spec(spec, params, self._root, scheduled=True).in_zone(
            self._spark.settings.time_zone
        )

    def _run(
        self,
        spec: JobSpec,
        selection: SpecSelection,
        *,
        fail: Failing | None,
        times: int,
        now: datetime | None = None,
    ) -> JobRun:
        here = self._arrivals.put(spec, selection.names(spec))
        spark, place = self._spark, self._folder / "warehouse"
        with InProcess(
            place, settings=spark.settings, driver=lambda: spark.driver, now=now
        ) as process:
            # `JobRun` reads what was staged.
            ended = process.run_or_leave(
                here,
                **selection._asdict(),
                fail=fail,
                times=times,
                keep=True,
                leaves=_OF_PYTEST,
            )
        done = JobRun(ended, here.values, self._log, lambda: self.spark)
        self._tell(done.why())
        return done

    # -- steps alone -------------------------------------------------------------------------------

    def step(
        self,
        function: Callable[..., Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        results: Results | None = None,
        output: str | None = None,
        spark: bool = True,
    ) -> StepRun:
        """Call a step, ``fn(spark, ctx, **params)``, with a context as on a worker.

        Args:
            inputs: by name, what ``ctx.input`` answers: rows or frames, as for `publish`.
            results: by group, what ``ctx.results`` answers.
            output: the name of the output that the function returns; None: that of the function.
            spark: False: as in a group with ``spark: false``. It gets None for Spark, and Arrow
                tables.

        Raises:
            BaseException: whatever the function raises.
            UnstuckError: the call does not fit, or an output cannot be stored.
        """
        return self._one_step(inputs, params, results, spark).call(function, output)

    def sql(
        self,
        statement: str | Path,
        *,
        inputs: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        results: Results | None = None,
        output: str = "sql",
    ) -> StepRun:
        """Run one SQL statement as a step; ``:name`` is a parameter.

        Args:
            statement: its text, or the path of a file with it.
            inputs, params, results: as for `step`.

        Raises: UnstuckError: Spark does not understand it; OSError: the file cannot be read.
        """
        text = (
            self._path(statement).read_text(encoding="utf-8")
            if isinstance(statement, Path)
            else statement
        )
        return self._one_step(inputs, params, results, True).query(text, output)

    def _one_step(
        self,
        inputs: Mapping[str, Any] | None,
        params: Mapping[str, Any] | None,
        results: Results | None,
        spark: bool,
    ) -> OneStep:
        frames = {
            name: frame_of(rows, about=f"the input {name}") for name, rows in (inputs or {}).items()
        }
        return OneStep(
            self._log,
            self._spark,
            lambda: self.spark,
            self._folder,
            frames,
            params or {},
            results or {},
            spark,
        )

    def _path(self, path: Path) -> Path:
        """Return ``path`` in the working folder, or else in the root of the tests."""
        return path if path.exists() else self._root / path
