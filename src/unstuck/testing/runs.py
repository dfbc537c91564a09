"""A finished job of a test, and the run of a tick."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.problems import suggestion
from unstuck.in_process.attempts import Failing
from unstuck.in_process.run_job import GroupEnd, JobResult
from unstuck.tasks.errors import DatasetNotFound
from unstuck.tasks.frames.output import read_table
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.steps.step_inputs import Dataset, published
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import StagedOutput, read_marker
from unstuck.tasks.warehouse.published import read_arrow
from unstuck.testing.given_rows import Kind, as_kind, rows_of
from unstuck.testing.specs import SpecSelection


class JobRun:
    """A job that has ended, or cannot continue by itself.

    Attributes:
        params: the values of its parameters.
    """

    def __init__(
        self, ended: JobResult, params: Mapping[str, Any], log: Warehouse, spark: Callable[[], Any]
    ) -> None:
        self._ended, self.params, self._log, self._spark = ended, dict(params), log, spark

    def __repr__(self) -> str:
        """Return the text that pytest shows for a failed assertion; `why` follows below it."""
        job = self._ended.view
        why = f": {job.reason.code}: {job.reason.text}" if job.reason else ""
        return f"<{job.name} is {job.status}{why}>"

    @property
    def finished(self) -> bool:
        """Whether it is FINISHED: all its groups are done, and its outputs are published."""
        return self._ended.finished

    @property
    def status(self) -> Status:
        return self._ended.status

    @property
    def results(self) -> dict[str, Any]:
        """Return the results of steps by group; for a fork a list, in the order of its members."""
        return self._ended.results

    @property
    def published(self) -> list[str]:
        """Return the names of the datasets that it has published."""
        return list(self._ended.view.published)

    def group(self, name: str) -> GroupEnd:
        """Return a group, or a member of a fork such as ``by_region[2]``.

        It has ``state``, ``reason``, ``results`` and ``attempts``.

        Raises: NoSuchGroup: there is none of this name, or it never began.
        """
        return self._ended.group(name)

    def why(self) -> str:
        """Return a line for the job, and for each group that has not succeeded, with the reason."""
        return self._ended.why()

    def events(self) -> list[dict[str, Any]]:
        """Return its event log, the oldest first."""
        return self._ended.events()

    def rows(self, name: str, *, order_by: str | Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the rows of a dataset that it published, or else of a staged output, as mappings.

        Args:
            order_by: columns; left out: the order of the files.

        Raises: DatasetNotFound: it has made no output of this name.
        """
        return rows_of(self.frame(name, "arrow"), order_by)

    def frame(self, name: str, to: Kind = "pandas") -> Any:
        """Return `rows` as a frame of pandas (with Arrow types), Arrow, DuckDB or Spark.

        Raises: DatasetNotFound: as `rows`; ModuleNotFoundError: the library is not installed.
        """
        job = self._ended.view
        if name in job.published and job.version:
            if to == "spark":
                return published(self._spark(), self._log, name, job.version)
            return as_kind(read_arrow(self._log, name, job.version), to)
        parts, files = self._staged(name), self._log.storage
        if to == "spark":
            return read_parquet(self._spark(), Dataset(name, tuple(parts)).by_schema(files))
        return as_kind(read_table(files, parts), to)

    def _staged(self, name: str) -> list[StagedOutput]:
        """Return the output ``name`` of each of its groups and members. Raises: DatasetNotFound."""
        outputs = self._outputs_of_members()
        if parts := [by_name[name] for by_name in outputs if name in by_name]:
            return [part for part in parts if part.rows] or parts
        available = list(
            dict.fromkeys(output_name for by_name in outputs for output_name in by_name)
        )
        hint = suggestion(name, available) or f"; there are: {', '.join(available) or 'none'}"
        raise DatasetNotFound(f"no group of {self!r} has made an output {name!r}{hint}")

    def _outputs_of_members(self) -> list[Mapping[str, StagedOutput]]:
        """Return the outputs of each group and member that staged any, by name."""
        members = [member for group in self._ended.view.groups for member in group.members]
        markers = [
            read_marker(self._log.storage, member.folder) for member in members if member.folder
        ]
        return [marker.outputs for marker in markers if marker is not None]


@dataclass(frozen=True)
class TickRun:
    """The run of a schedule that is due at one moment.

    Attributes:
        tick: for which it runs, on the clock of the schedule.
        params: the values of the parameters of its job.
    """

    tick: datetime.datetime
    params: Mapping[str, Any]
    _run: Callable[..., JobRun] = field(repr=False)

    def run(
        self,
        *,
        only: str | Collection[str] = (),
        from_: str | Collection[str] = (),
        until: str | Collection[str] = (),
        fail: Failing | None = None,
        times: int = 1,
    ) -> JobRun:
        """Run its job, with the clock at the tick. The arguments are those of `Unstuck.run`.

        Raises:
            NoSuchGroup: a name fits no group.
            BadRequest: a selected group reads an output of a group that is left out, and
                nobody has published that output; or a group needs a fleet.
            ValueError: something has arrived for a stream that the job does not have.
            NotImplementedError: the job reads Kafka.
            UnstuckError: this machine lacks what the job needs.
        """
        return self._run(SpecSelection.of(only, from_, until), fail=fail, times=times)
