"""The handle of a submitted job: wait for it, read it and its datasets, give it commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.answers import Submitted
from unstuck.read_model.command_result import CommandResult
from unstuck.read_model.job import JobInfo
from unstuck.tasks.errors import DatasetNotFound
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import published_files, read_arrow
from unstuck.views.jobs.job_logs import find_logs, lines_of


class JobClient(Protocol):
    """The methods of `Client` that a handle calls, each with the id of its job."""

    def facts(self, job: str) -> JobInfo: ...
    def show(self, job: str, *, why: bool = False) -> JobInfo: ...
    def wait(self, job: str, timeout: float | None = None) -> JobInfo: ...
    def events(self, job: str) -> Iterator[tuple[str, dict[str, Any]]]: ...
    def retry(
        self,
        job: str,
        *,
        params: Mapping[str, Any] | None = None,
        rerun: Sequence[str] = (),
        reason: str = "",
    ) -> JobHandle: ...
    def cancel(self, job: str, *, reason: str = "") -> CommandResult: ...


class JobHandle:
    """One job. Each method reads the current state; errors are those of `Client`.

    Attributes:
        id: of the job.
        new: False if the job had been submitted before, with the same key.
        warnings: parts of its spec without effect, such as a parameter that nothing uses.

    >>> job = client.job(client.submit(spec).id)
    >>> job.status
    <Status.PENDING: 'PENDING'>
    >>> [event["kind"] for event in job.events()]
    ['SUBMITTED']
    >>> job.cancel(reason="not needed").answer
    <Answer.DONE: 'DONE'>
    """

    def __init__(self, client: JobClient, submitted: Submitted) -> None:
        self._client, self.submitted = client, submitted
        self.id, self.new, self.warnings = submitted.id, submitted.new, submitted.warnings

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    @property
    def status(self) -> Status:
        """The present status.

        Raises: NoSuchJob.
        """
        return self._client.facts(self.id).status

    def show(self) -> JobInfo:
        """Return the job with its groups; see `Client.show`.

        Raises: NoSuchJob.
        """
        return self._client.show(self.id)

    def wait(self, timeout: float | None = None) -> JobInfo:
        """Wait until the job has ended, or cannot continue by itself; see `Client.wait`.

        Raises:
            TimeoutError: it had not ended after ``timeout`` seconds. The job goes on.
        """
        return self._client.wait(self.id, timeout)

    def why(self) -> str:
        """Return what the job and each of its unfinished groups wait for, a line each.

        Raises: NoSuchJob.
        """
        view = self._client.show(self.id, why=True)
        return "\n".join(f"{subject}: {view.why_line(subject)}" for subject in view.explanations)

    @property
    def results(self) -> dict[str, Any]:
        """The results that steps recorded, by group.

        The results of a fork are a list, in the order of its members.

        Raises: NoSuchJob.
        """
        return {
            group.name: recorded if group.forked else recorded[0]
            for group in self.show().groups
            if (recorded := [dict(member.results) for member in group.members]) and any(recorded)
        }

    def events(self) -> list[dict[str, Any]]:
        """Return the event log, oldest first."""
        return [event for _, event in self._client.events(self.id)]

    def logs(self, group: str | None = None) -> Iterator[str]:
        """Yield the lines that the newest attempts logged and printed.

        Args:
            group: a group, a fork or one member; None for all.

        Raises: NoSuchJob, NoSuchGroup; OSError: the warehouse could not be read.
        """
        view = self.show()
        if group is not None:
            view.planned(group)
        files = Warehouse(view.warehouse).storage
        for log in find_logs(files, view, group, False):
            yield from lines_of(files, log)

    def files(self, dataset: str, *, where: Mapping[str, Any] | None = None) -> list[str]:
        """Return the paths of the Parquet files of a dataset, as of the publish of this job.

        Args:
            where: as for `published_files`.

        Raises: DatasetNotFound: the job has not published it, or not yet.
        """
        place, version = self._published(dataset)
        return published_files(place, dataset, version, where=where)

    def read(
        self,
        dataset: str,
        to: Any = "arrow",
        *,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the rows of a dataset as of the publish of this job.

        Args:
            to: ``arrow`` for a table, ``pandas`` for a frame with Arrow types, ``duckdb`` for a
                relation; or a connection of DuckDB, for a relation there; or a session of Spark,
                for a frame as of `published`.
            where: as of `published_files`.

        Raises:
            DatasetNotFound: the job has not published it, or not yet.
            ModuleNotFoundError: the library is not installed here.
            ValueError: there is no such ``to``.
        """
        place, version = self._published(dataset)
        if hasattr(to, "createDataFrame"):
            from unstuck import published

            return published(to, place, dataset, version, where=where)
        return read_arrow(place, dataset, version, where=where, to=to)

    def retry(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        rerun: Sequence[str] = (),
        reason: str = "",
    ) -> JobHandle:
        """Retry the job: return a new job that runs the unfinished work; see `Client.retry`.

        Raises: Refused.
        """
        return self._client.retry(self.id, params=params, rerun=rerun, reason=reason)

    def cancel(self, *, reason: str = "") -> CommandResult:
        """Interrupt running groups and end the job; see `Client.cancel`."""
        return self._client.cancel(self.id, reason=reason)

    def _published(self, dataset: str) -> tuple[Warehouse, int]:
        """Return the warehouse and the published version. Raises: DatasetNotFound."""
        job = self._client.facts(self.id)
        if not job.version or dataset not in job.published:
            has = ", ".join(job.published) or "nothing"
            raise DatasetNotFound(
                f"job {self.id}, which is {job.status}, has published {has}, and not {dataset!r}"
            )
        return Warehouse(job.warehouse), job.version
