"""Lists of jobs, read from their summaries."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from itertools import islice

from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.job_queries import Queries
from unstuck.read_model.job import JobInfo

BATCH = 500  # jobs of one read


class JobList:
    """The jobs in one store."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def jobs(
        self,
        status: Sequence[Status] = (),
        name: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> list[JobInfo]:
        """Return jobs, the newest first. The arguments are those of `Client.jobs`."""
        ids = self._queries.ids(status, since, None if name else limit)
        fitting = (
            job for job in self._read(ids) if name is None or fnmatch.fnmatchcase(job.name, name)
        )
        return list(islice(fitting, limit))

    def of_ids(self, ids: Sequence[str]) -> list[JobInfo]:
        """Return those of these jobs that are in the store, in their order."""
        return list(self._read(ids))

    def failed(self) -> list[JobInfo]:
        """Return the jobs of the index of failed jobs, the last failure first."""
        return sorted(self._read(self._queries.failed_ids()), key=lambda job: -job.ended_at)

    def _read(self, ids: Sequence[str]) -> Iterator[JobInfo]:
        for start in range(0, len(ids), BATCH):
            yield from map(JobInfo.of_summary, self._queries.summaries(ids[start : start + BATCH]))
