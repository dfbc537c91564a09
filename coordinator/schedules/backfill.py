"""Ticks of the past that a person asked for: which are run next, and what becomes of their runs (pure).

A backfill is part of the record of its schedule, so any coordinator goes on with it. Its runs have the keys of their
ticks, and are apart from those of the clock: ``overlap`` does not concern them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Backfill, Redo, Run, RunFailure, tick_text
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick, ticks
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec, instant

MAX_TICKS = 10_000  # of one backfill
MAX_PARALLEL = 100

Event = dict[str, Any]


Bound = str | date


@dataclass(frozen=True, slots=True)
class Wanted:
    """A backfill as a person asks for it.

    Attributes:
        first, last: the range, its ends included; aware times.
        parallel: how many runs may go on at once.
        redo: of ticks that had a run before: ``none``, the ``failed``, or ``all`` are run again.
        backwards: begin with the newest tick.
    """

    first: datetime
    last: datetime
    parallel: int = 1
    redo: Redo = "none"
    backwards: bool = False

    @classmethod
    def between(cls, policy: ScheduleSpec, first: Bound, last: Bound, **more: Any) -> Wanted:
        """From ``first`` to ``last``: times with their offset, or days of the schedule's zone, ends included.

        Raises: ValueError.
        """
        return cls(_bound(first, policy, False), _bound(last, policy, True), **more)

    def problem(self, policy: ScheduleSpec, now: float) -> str:
        """Say why there is no such backfill; empty if there is one."""
        if policy.cron is None and policy.every is None:
            return "it has no ticks: only `cron` and `every` make some"
        if self.first > self.last:
            return f"--from {self.first.isoformat()} is after --to {self.last.isoformat()}"
        if not 1 <= self.parallel <= MAX_PARALLEL:
            return f"--parallel: expected 1 to {MAX_PARALLEL} runs at once, not {self.parallel}"
        found = self.ticks(policy, now)
        if len(found) > MAX_TICKS:
            return f"there are more than {MAX_TICKS:,} ticks from {self.first.isoformat()} on; give it in parts"
        span = f"from {self.first.isoformat()} to {self.last.isoformat()}"
        return "" if found else f"no tick {span} has come"

    def ticks(self, policy: ScheduleSpec, now: float) -> list[datetime]:
        """The ticks that have come, in the order in which they are run; at most one more than there may be."""
        last = min(self.last, datetime.fromtimestamp(now, UTC))
        found = list(islice(ticks(policy, self.first - timedelta(microseconds=1), last), MAX_TICKS + 1))
        return found[::-1] if self.backwards else found

    def begun(self, policy: ScheduleSpec, written: str, now: float, by: str) -> Backfill:
        """The backfill, of which no run is decided yet. ``written``: the policy as it stands in the record."""
        found = [tick.timestamp() for tick in self.ticks(policy, now)]
        known = (min(found), max(found), len(found), now, by, found[0], written)
        return Backfill(*known, self.parallel, self.redo, self.backwards)


def _bound(value: Bound, policy: ScheduleSpec, is_end: bool) -> datetime:
    """Raises: ValueError."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        value = date.fromisoformat(value)
    if isinstance(value, str | datetime):
        return instant(value)
    begin = datetime.combine(value + timedelta(days=is_end), time(), policy.time_zone)
    return begin.astimezone(UTC) - timedelta(microseconds=is_end)


def submit_event(run: Run, job: str, now: float, *, had: bool) -> Event:
    """The event once ``run`` is submitted as ``job``; ``had``: the tick had that job before, so nothing was begun."""
    event = {"kind": "RUN_STANDS" if had else "RUN_SUBMITTED", "at": now, "job": job, "tick": tick_text(run.tick)}
    return {**event, "text": "the tick had this run before"} if had else event


def stored_runs(
    schedule: str, runs: tuple[Run, ...], seen: Mapping[str, RunSeen], now: float
) -> tuple[tuple[Run, ...], list[Event]]:
    """Those of ``runs`` whose job is in the store, where no other is submitted any more; with events of new ones."""
    unnoted = {run: run.job_id(schedule) for run in runs if not run.job}
    events = [
        submit_event(run, job, now, had=not run.was_begun_by(seen[job].by))
        for run, job in unnoted.items()
        if job in seen
    ]
    named = (replace(run, job=unnoted.get(run, run.job)) for run in runs)
    return tuple(run for run in named if run.job in seen or run.job not in unnoted.values()), events


def advance(
    name: str, backfill: Backfill, policy: ScheduleSpec, runs: Mapping[str, RunSeen], now: float, *, held: bool
) -> tuple[Backfill, list[Event]]:
    """``backfill`` with what has become of its runs, and with those that are to be submitted next.

    Args:
        name: of the schedule.
        policy: that of the backfill: whatever the schedule is set to later, its ticks stay the same.
        runs: the jobs of its runs that are in the store, also of those of which nobody has noted that.
        held: its schedule is paused.
    """
    if backfill.over:
        return backfill, []
    events: list[Event] = []
    if backfill.canceled:
        found, events = stored_runs(name, backfill.runs, runs, now)
        backfill = replace(backfill, runs=found)
    for run in backfill.runs:
        if run.job and ((seen := runs.get(run.job)) is None or seen.status.terminal):
            backfill = _ended(backfill, run, seen, policy, now, events)
    if backfill.canceled:
        backfill = replace(backfill, runs=tuple(run for run in backfill.runs if run.job))
    while not held and backfill.goes_on and len(backfill.runs) < backfill.parallel and now >= backfill.next_at:
        if backfill.next is None:
            break
        run = Run(tick=backfill.next, at=now, by=backfill.author)
        backfill = replace(backfill, runs=(*backfill.runs, run), next=_following(backfill, policy))
    if not backfill.runs and (backfill.canceled or backfill.next is None):
        backfill = replace(backfill, ended_at=now)
        events.append({"kind": "BACKFILL_ENDED", "at": now, "text": backfill.progress})
    return backfill, events


def run_ended(
    backfill: Backfill, run: Run, seen: RunSeen, policy: ScheduleSpec, now: float
) -> tuple[Backfill, list[Event]]:
    """``backfill`` after the run of this tick and try has ended as ``seen``."""
    events: list[Event] = []
    for mine in backfill.runs:
        if (mine.tick, mine.number) == (run.tick, run.number):
            backfill = _ended(backfill, mine, seen, policy, now, events)
    return backfill, events


def _following(backfill: Backfill, policy: ScheduleSpec) -> float | None:
    """The tick after the next one, in the order of the backfill; None if that was the last."""
    assert backfill.next is not None
    at = datetime.fromtimestamp(backfill.next, UTC)
    found = previous_tick(policy, at) if backfill.backwards else next_tick(policy, at)
    if found is None or not backfill.first <= found.timestamp() <= backfill.last:
        return None
    return found.timestamp()


def _ended(
    backfill: Backfill, run: Run, seen: RunSeen | None, policy: ScheduleSpec, now: float, events: list[Event]
) -> Backfill:
    others = tuple(one for one in backfill.runs if one is not run)
    if seen is None:  # a store that was rolled back: submitting the run again is the same job
        return replace(backfill, runs=(*others, replace(run, job="")))
    well = seen.status is Status.FINISHED
    if seen.by != run.by:  # the tick had a run before
        if backfill.redo == "all" or (backfill.redo == "failed" and not well):
            again = Run(run.tick, run.number + 1, at=now, by=run.by, retry_of="" if well else run.job)
            return replace(backfill, runs=(*others, again))
        return replace(backfill, runs=others, had=backfill.had + 1)
    event = {"kind": f"BACKFILL_RUN_{seen.status}", "at": now, "job": run.job, "tick": tick_text(run.tick)}
    reason = seen.reason
    events.append(event if reason is None else {**event, "code": reason.code, "text": reason.text})
    backfill = replace(backfill, runs=others)
    if well:
        return replace(backfill, well=backfill.well + 1, failures=0)
    backfill = replace(backfill, failed=backfill.failed + 1)
    if seen.status is not Status.FAILED:  # a person ended it
        return backfill
    reason = reason or Reason("FAILED", "it failed")
    failures, retry = backfill.failures + 1, policy.retry
    error = RunFailure(run.job, run.tick, seen.ended_at, reason.code, reason.text)
    # Its next tick is the next try: what is away for a while must not fail them all.
    wait = doubled(retry.backoff, retry.max_backoff, failures - 1)
    backfill = replace(backfill, failures=failures, last_error=error, next_at=now + wait)
    if failures <= retry.max:
        return backfill
    reason = Reason("RETRIES_EXHAUSTED", f"{failures} runs failed in a row; the last: {reason.text}")
    return replace(backfill, halted=reason)
