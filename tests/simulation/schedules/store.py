"""The model of the store of schedules: what its scripts do, on Python values; and the jobs of their
runs, by and large.

``test_schedules.py`` plays the same histories on the real store and its scripts, and compares every
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import Tick
from unstuck.coordinator.store.answers import CommitAnswer, KeyTaken
from unstuck.coordinator.store.schedule_store import FORGET_AFTER, TAKEN_AT_ONCE, ScheduleChange


@dataclass(slots=True)
class StoredSchedule:
    """The keys of one schedule."""

    commit: str
    record: str
    spec: str
    over: bool = False
    commanded: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, float] = field(default_factory=dict)
    ticks: dict[float, Tick] = field(default_factory=dict)

    def copy(self) -> StoredSchedule:
        return replace(self, events=list(self.events), runs=dict(self.runs), ticks=dict(self.ticks))

    def read(self) -> ScheduleRecord:
        return ScheduleRecord.from_json(self.record, self.commit, self.spec)


class ScheduleWatching(Protocol):
    """Who is told of every write: the rules."""

    def committed(
        self, before: ScheduleRecord | None, after: ScheduleRecord, change: ScheduleChange
    ) -> None: ...
    def submitted(self, job: JobRecord) -> None: ...
    def rolled_back(self) -> None: ...


class ModelSchedules:
    """All schedules, their due index, and the jobs of their runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.schedules: dict[str, StoredSchedule] = {}
        self.due: dict[str, float] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.keys: dict[str, tuple[str, str]] = {}  # key → job, and the fingerprint of its spec
        self.newest: dict[
            str, tuple[int, float]
        ] = {}  # dataset → its newest version, and when it was published
        self.expires: dict[str, float] = {}  # jobs that leave the store
        self.outbox: list[str] = []
        self.told: dict[
            str, list[tuple[str, float, float]]
        ] = {}  # schedule → word, when, since when; for the rules
        self.alive_at = 0.0
        self.skew = 0.0
        self.jumped = False
        self.watching: ScheduleWatching | None = None

    @property
    def now(self) -> float:
        return round(self._clock() + self.skew, 6)

    def set_clock(self, forward: float) -> None:
        self.skew += forward
        self.jumped = True

    def remember(self) -> Callable[[], None]:
        """A snapshot of all keys; answers how to go back to it."""
        schedules = {name: one.copy() for name, one in self.schedules.items()}
        due, jobs, keys, alive_at = dict(self.due), dict(self.jobs), dict(self.keys), self.alive_at
        expires, newest = dict(self.expires), dict(self.newest)
        outbox, told = list(self.outbox), {name: list(words) for name, words in self.told.items()}

        def restore() -> None:
            self.outbox, self.told = outbox, told
            self.expires, self.newest = expires, newest
            self.schedules, self.due, self.jobs, self.keys, self.alive_at = (
                schedules,
                due,
                jobs,
                keys,
                alive_at,
            )
            if self.watching:
                self.watching.rolled_back()

        return restore

    # ---- coordinator/store/lua/schedules, and what else concerns schedules
    # ---------------------------------------

    def tick(self, period: float) -> None:
        now = self.now
        gap = now - self.alive_at
        if gap > 3 * period or gap < 0:
            self.due = {name: min(at, now) for name, at in self.due.items()}
        self.alive_at = now
        for job_id in [job_id for job_id, at in self.expires.items() if at <= now]:
            del self.expires[job_id]
            self.keys.pop(self.jobs.pop(job_id).key, None)

    def repair(self) -> int:
        missing = [
            name for name, one in self.schedules.items() if not one.over and name not in self.due
        ]
        self.due.update(dict.fromkeys(missing, self.now))
        return len(missing)

    def lose_due(self, name: str) -> None:
        """The due index has lost the schedule."""
        self.due.pop(name, None)

    def forget_runs(self, name: str, keep: int) -> int:
        runs = self.schedules[name].runs if name in self.schedules else {}
        over = sorted(runs, key=lambda job: (runs[job], job))[: max(0, len(runs) - keep)][:100]
        for job in over:
            if job not in self.jobs or self.jobs[job].terminal:
                del runs[job]
                if job in self.jobs:
                    self.expires.setdefault(job, self.now + FORGET_AFTER)
        return len(over)

    def take_due(self, term: float) -> tuple[float, dict[str, str]]:
        now = self.now
        found = sorted((at, name) for name, at in self.due.items() if at <= now)[:TAKEN_AT_ONCE]
        self.due.update((name, round(now + term, 6)) for _, name in found)
        return min(self.due.values(), default=inf) - now, {
            name: repr(self.due[name]) for _, name in found
        }

    def published(self, datasets: Sequence[str]) -> dict[str, tuple[int, float]]:
        return {name: self.newest[name] for name in datasets if name in self.newest}

    def load(self, name: str) -> ScheduleRecord | None:
        stored = self.schedules.get(name)
        return None if stored is None else stored.read()

    def commit(self, change: ScheduleChange) -> CommitAnswer:
        name = change.record.name
        stored = self.schedules.get(name)
        if stored is not None and change.id in (stored.commit, stored.commanded):
            return CommitAnswer.APPLIED
        if self._conflicts(stored, change):
            return CommitAnswer.MISSING if stored is None else CommitAnswer.CONFLICT
        before = None if stored is None else stored.read()
        stored = stored or StoredSchedule("", "", "")
        self.schedules[name] = stored
        stored.commit, stored.record, stored.spec = (
            change.id,
            change.record.to_json(),
            change.record.spec,
        )
        stored.over = change.due is None
        if change.commanded:
            stored.commanded = change.id
        stored.events += [dict(event) for event in change.events]
        self.outbox += change.notices
        stored.runs.update(change.runs or {})
        self._note_ticks(stored, change)
        self._set_due(name, change)
        if self.watching:
            self.watching.committed(before, stored.read(), change)
        return CommitAnswer.APPLIED

    def _note_ticks(self, stored: StoredSchedule, change: ScheduleChange) -> None:
        stored.ticks.update({tick.at: tick for tick in change.ticks})

    def ticks(self, name: str, first: float, last: float = inf) -> dict[float, Tick]:
        stored = self.schedules.get(name)
        known = stored.ticks if stored is not None else {}
        return {at: known[at] for at in sorted(known) if first <= at <= last}

    def _conflicts(self, stored: StoredSchedule | None, change: ScheduleChange) -> bool:
        return (stored.commit if stored is not None else "") != change.expect

    def _set_due(self, name: str, change: ScheduleChange) -> None:
        if change.due is None:
            self.due.pop(name, None)
            return
        due = round(change.due, 6)
        seen = name in self.due and repr(self.due[name]) == change.due_seen
        if seen and self.now < float(change.due_seen):
            self.due[name] = due
        else:
            self.due[name] = min(due, self.due.get(name, due))

    # ---- jobs
    # ------------------------------------------------------------------------------------------------------

    def submitted(self, key: str, fingerprint: str) -> str | None:
        """Raises: KeyTaken."""
        standing, same = self.keys.get(key, (None, fingerprint))
        if standing is not None and same != fingerprint:
            raise KeyTaken(standing)
        return standing

    def submit(self, job: JobRecord, fingerprint: str, expect: str) -> tuple[str, bool] | None:
        """The job that stands, and whether it is this one; None if its schedule has changed.

        Raises: KeyTaken.
        """
        if job.id in self.jobs:
            return job.id, True
        if standing := self.submitted(job.key, fingerprint):
            return standing, False
        schedule = self.schedules.get(job.schedule)
        if self._changed(schedule, expect):
            return None
        if schedule is not None:
            schedule.commit = job.id
        self.keys[job.key] = (job.id, fingerprint)
        self.jobs[job.id] = replace(job, submitted_at=self.now)
        if self.watching:
            self.watching.submitted(self.jobs[job.id])
        return job.id, True

    def _changed(self, stored: StoredSchedule | None, expect: str) -> bool:
        return (stored.commit if stored is not None else "") != expect

    def end_job(
        self, job_id: str, status: Status, version: int, reason: Reason | None, left: int
    ) -> None:
        """As the commit that ends a job: its schedule is due."""
        job, dataset = self.jobs[job_id], f"{self.jobs[job_id].name}_rows"
        ended = replace(
            job, status=status, ended_at=self.now, version=version, reason=reason, left=left
        )
        self.jobs[job_id] = ended
        if version > self.newest.get(dataset, (0, 0.0))[0]:
            self.newest[dataset] = (version, self.now)
            for name, stored in self.schedules.items():
                if dataset in stored.read().follows:
                    self.due_now(name)
        self.due_now(job.schedule)

    def due_now(self, name: str) -> None:
        if name in self.due:
            self.due[name] = min(self.due[name], self.now)
