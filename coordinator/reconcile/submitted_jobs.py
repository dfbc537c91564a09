"""Caches which jobs of some names were submitted, and when."""

from __future__ import annotations

import json
from collections.abc import Collection

from unstuck.coordinator.notices.rules.expected import Came
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore

MAX_JOBS_PER_SCAN = 20_000  # of any name; the next scan reads on
# Seconds that are read once more, since the clock of Redis may be set back a little.
OVERLAP_S = 60.0


class SubmittedJobs:
    """Submit times by job id and name, complete between `_from` and `_to`.

    Each job is read once.
    """

    def __init__(self, store: ExpectedJobsStore) -> None:
        self._store = store
        self._from = self._to = 0.0
        self._complete = True  # the last scan read all jobs
        self._times: dict[str, dict[str, float]] = {}

    def follow(self, names: Collection[str], since: float, now: float) -> bool:
        """Read the jobs of these names that were submitted since a time.

        Return whether all were read.
        """
        is_usable = self._times.keys() >= set(names) and self._from <= since and self._to <= now
        if not is_usable:
            self._times, self._to, self._complete = {name: {} for name in names}, since, True
        self._drop_before(since)
        begin = f"{max(since, self._to - OVERLAP_S)}" if self._complete else f"({self._to}"
        submitted = self._store.submitted(begin, MAX_JOBS_PER_SCAN)
        times = dict(submitted)
        for line in self._store.lines(self._times, list(times)):
            job = json.loads(line)
            if job["name"] in self._times and not job.get("schedule"):
                self._times[job["name"]][job["id"]] = times[job["id"]]
        if submitted:
            self._to = max(self._to, submitted[-1][1])
        self._complete = len(submitted) < MAX_JOBS_PER_SCAN
        return self._complete

    def _drop_before(self, since: float) -> None:
        self._from = since
        for name, times in self._times.items():
            self._times[name] = {job: at for job, at in times.items() if at >= since}

    def since(self, name: str, at: float) -> list[Came]:
        """Return the jobs of a name that were submitted since a time, the newest first."""
        times = self._times[name]
        newest = sorted((job for job in times if times[job] >= at), key=times.__getitem__)
        lines = self._store.lines([name], newest[::-1])
        return [Came.of_summary(json.loads(line)) for line in lines]
