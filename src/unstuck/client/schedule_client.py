"""The client of schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.tick import Tick
from unstuck.coordinator.requests.schedule_requests import ScheduleRequests, wanted_ticks
from unstuck.coordinator.schedules.backfill import Bound, Ticks
from unstuck.coordinator.schedules.explain import ScheduleExplanation, explain_schedule
from unstuck.coordinator.schedules.schedule_state import ScheduleState
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.tick_params import tick_params
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.submitter import Submitter
from unstuck.read_model.event import EventInfo
from unstuck.read_model.job import JobInfo
from unstuck.read_model.job_list import JobList
from unstuck.read_model.schedule import ScheduleInfo, TickInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.views.installation import schedule_states
from unstuck.views.jobs.job_views import idle


class ScheduleClient(ScheduleRequests):
    """Set schedules, give them commands and ask about them; `Client.schedules`."""

    def __init__(
        self,
        store: ScheduleStore,
        registry: ProcessRegistry,
        submitter: Submitter,
        queries: Queries,
        why_job: Callable[[str], str],
    ) -> None:
        """Take ``why_job``, which explains a job in one line; empty if the job is missing."""
        super().__init__(store, registry, submitter, queries)
        self._why_job = why_job

    def backfill_ticks(
        self, name: str, first: Bound, last: Bound | None = None, *, backwards: bool = False
    ) -> list[TickInfo]:
        """Return the ticks that a backfill would run, in their order.

        Raises: as `backfill`, and BadRequest if there would be none or too many.
        """
        record, now = self._record(name), self._store.now()
        policy, requested = (
            policy_of(record.policy),
            wanted_ticks(record, first, last, backwards=backwards),
        )
        if wrong := requested.problem(policy, now):
            raise BadRequest(f"schedule {name} cannot be backfilled: {wrong}")
        ticks = requested.ticks(policy, now)
        params = json.loads(record.spec).get("params", {})
        stored_ticks = self._store.ticks(name, *_ends(ticks))
        return [_tick_info(tick, tick_params(params, policy, tick), stored_ticks) for tick in ticks]

    def names(self) -> list[str]:
        """Return the names of all schedules, in order."""
        return self._store.names()

    def all(self) -> list[ScheduleInfo]:
        """Return all schedules by name, without those whose record cannot be read."""
        return self.all_and_unreadable()[0]

    def all_and_unreadable(self) -> tuple[list[ScheduleInfo], dict[str, str]]:
        """Return all schedules, and a sentence for each whose record cannot be read."""
        records, damaged = self._store.load_all(self.names())
        states = schedule_states(self._store, self._queries, records)
        return [ScheduleInfo.of(state) for state in states], damaged

    def show(self, name: str, *, ticks: int = 1, jobs: int = 0, events: int = 0) -> ScheduleInfo:
        """Return one schedule, with as many next ticks, last jobs and last events as requested.

        Raises: NoSuchSchedule.
        """
        state = self._state(name)
        last_jobs = self.runs_of([name], jobs)[name] if jobs else ()
        last_events = self._store.events(name, events) if events else ()
        return ScheduleInfo.of(
            state, ticks, jobs=tuple(last_jobs), events=tuple(map(EventInfo.of, last_events))
        )

    def written(self, name: str) -> dict[str, Any]:
        """Return the job spec that a schedule repeats. Raises: NoSuchSchedule."""
        return dict(json.loads(self._record(name).spec))

    def why(self, name: str) -> ScheduleExplanation:
        """Explain the status of a schedule, and what would help. Raises: NoSuchSchedule."""
        state = self._state(name)
        jobs = {run.job: self._why_job(run.job) for run in state.schedule.going_on if run.job}
        return explain_schedule(state, idle(self._queries, state.at), jobs)

    def _state(self, name: str) -> ScheduleState:
        return schedule_states(self._store, self._queries, [self._record(name)])[0]

    def events(self, name: str, most: int = 100) -> list[dict[str, Any]]:
        """Return the newest events of a schedule, oldest first.

        The events of a removed schedule are kept for a time.

        Raises: NoSuchSchedule.
        """
        events = self._store.events(name, most)
        if not events:
            self._record(name)
        return events

    def runs(self, name: str, most: int = 20) -> list[JobInfo]:
        """Return the jobs of the runs of a schedule, newest first.

        Raises: NoSuchSchedule.
        """
        self._record(name)
        return self.runs_of([name], most)[name]

    def runs_of(self, names: Sequence[str], most: int = 20) -> dict[str, list[JobInfo]]:
        """Return the newest jobs of several schedules, at most ``most`` of each, newest first."""
        job_ids = dict(zip(names, self._store.runs_of(names, most), strict=True))
        listed = {
            job.id: job
            for job in JobList(self._queries).of_ids([*chain.from_iterable(job_ids.values())])
        }
        return {
            name: [listed[job] for job in jobs if job in listed] for name, jobs in job_ids.items()
        }


def _ends(ticks: Sequence[datetime]) -> tuple[float, float]:
    stamps = [tick.timestamp() for tick in ticks]
    return min(stamps), max(stamps)


def _tick_info(tick: datetime, params: Mapping[str, str], stored_ticks: Ticks) -> TickInfo:
    stored = stored_ticks.get(tick.timestamp(), Tick(tick.timestamp()))
    return TickInfo(stored.at, params, stored.job, stored.outcome)
