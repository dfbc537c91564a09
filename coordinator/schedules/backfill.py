"""Decides a backfill: which ticks get a run next, and what the end of a run changes. Pure.

A backfill is part of the record of its schedule, so any coordinator can continue it. Whether a tick
needs a run depends only on the outcome of the tick.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    MAX_UNRESOLVED,
    Backfill,
    Redo,
    Run,
    RunFailure,
    ScheduleRecord,
)
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text
from unstuck.coordinator.schedules.run_outcome import RunSeen, has_ended
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick, ticks
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec, instant

MAX_TICKS = 10_000  # of one backfill
MAX_PARALLEL = 100
_ALWAYS = datetime(9000, 1, 1, tzinfo=UTC)

Event = dict[str, Any]
Bound = str | date
Ticks = Mapping[float, Tick]
"""Ticks that had a run or were skipped, by their instant."""
NO_TICKS: Ticks = MappingProxyType({})
WINDOW = 200  # ticks of a backfill that one decision may pass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A backfill as a user requests it.

    Attributes:
        first, last: the range, including both ends; aware times.
        parallel: maximum number of active runs.
        redo: which ticks with a run are run again: ``none``, ``failed`` or ``all``.
        backwards: whether to start with the newest tick.
        from_here: whether to run all ticks from ``first`` to the newest again, in order, from the
            state before ``first``.
    """

    first: datetime
    last: datetime
    parallel: int = 1
    redo: Redo = "none"
    backwards: bool = False
    from_here: bool = False

    @classmethod
    def between(cls, policy: ScheduleSpec, first: Bound, last: Bound | None, **more: Any) -> Wanted:
        """Return a backfill from ``first`` to ``last``, the ends included.

        A bound is a time with its offset, or a day in the zone of the schedule. Without ``last``,
        the range ends at the newest tick that has come.

        Raises: ValueError.
        """
        end = _ALWAYS if last is None else _bound(last, policy, True)
        return cls(_bound(first, policy, False), end, **more)

    def problem(self, policy: ScheduleSpec, now: float) -> str:
        """Return why this backfill is impossible; empty if it is possible."""
        if policy.cron is None and policy.every is None:
            return "it has no ticks: only `cron` and `every` make some"
        if self.first > self.last:
            return f"--from {self.first.isoformat()} is after --to {self.last.isoformat()}"
        if not 1 <= self.parallel <= MAX_PARALLEL:
            return f"--parallel: expected 1 to {MAX_PARALLEL} runs at once, not {self.parallel}"
        tick_times = self.ticks(policy, now)
        if len(tick_times) > MAX_TICKS:
            return (
                f"there are more than {MAX_TICKS:,} ticks from {self.first.isoformat()} on; "
                "give it in parts"
            )
        span = f"from {self.first.isoformat()} to {self.last.isoformat()}"
        return "" if tick_times else f"no tick {span} has come"

    def ticks(self, policy: ScheduleSpec, now: float) -> list[datetime]:
        """Return the past ticks of the range, in the order of their runs.

        If there are too many, the list ends after the first tick beyond the maximum.
        """
        last = min(self.last, datetime.fromtimestamp(now, UTC))
        tick_times = list(
            islice(ticks(policy, self.first - timedelta(microseconds=1), last), MAX_TICKS + 1)
        )
        return tick_times[::-1] if self.backwards else tick_times

    def begun(self, policy: ScheduleSpec, written: str, now: float, by: str) -> Backfill:
        """Return the record of this backfill before its first run.

        Args:
            written: the stored policy of the schedule.
        """
        tick_times = [tick.timestamp() for tick in self.ticks(policy, now)]
        return Backfill(
            first=min(tick_times),
            last=max(tick_times),
            total=len(tick_times),
            at=now,
            by=by,
            next=tick_times[0],
            policy=written,
            parallel=self.parallel,
            redo=self.redo,
            backwards=self.backwards,
        )


def _bound(value: Bound, policy: ScheduleSpec, is_end: bool) -> datetime:
    """Return a bound of a range as a time. Raises: ValueError."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        value = date.fromisoformat(value)
    if isinstance(value, str | datetime):
        return instant(value)
    begin = datetime.combine(value + timedelta(days=is_end), time(), policy.time_zone)
    return begin.astimezone(UTC) - timedelta(microseconds=is_end)


def submit_event(run: Run, job: str, now: float, *, had: bool) -> Event:
    """Return the event of the submit of ``run`` as ``job``.

    Args:
        had: whether the tick already had that job, so that no job was stored.
    """
    event = {
        "kind": "RUN_STANDS" if had else "RUN_SUBMITTED",
        "at": now,
        "job": job,
        **tick_of(run),
    }
    return {**event, "text": "the tick had this run before"} if had else event


def tick_of(run: Run) -> Event:
    """Return the event fields that name the tick and number of ``run``; none for a run by hand."""
    if run.by_hand:
        return {}
    event = {"tick": tick_text(run.tick), "number": run.number}
    return {**event, "redo": run.redo} if run.redo else event


def ended_event(prefix: str, run: Run, job_state: RunSeen, now: float) -> Event:
    """Return the event of the end of ``run``."""
    event = {"kind": f"{prefix}RUN_{job_state.status}", "at": now, "job": run.job, **tick_of(run)}
    if job_state.version and job_state.status is Status.FINISHED:
        event["version"] = job_state.version
    reason = job_state.reason
    return event if reason is None else {**event, "code": reason.code, "text": reason.text}


def stored_runs(
    schedule: str, runs: tuple[Run, ...], job_states: Mapping[str, RunSeen], now: float
) -> tuple[tuple[Run, ...], list[Event]]:
    """Return the runs whose job is stored, and the events of those that the record did not name.

    A schedule that stops, or a backfill that is canceled, drops the other runs.
    """
    unnoted = {run: run.job_id(schedule) for run in runs if not run.job}
    events = [
        submit_event(run, job, now, had=job_states[job].backfill != run.backfill)
        for run, job in unnoted.items()
        if job in job_states
    ]
    named = (replace(run, job=unnoted.get(run, run.job)) for run in runs)
    lost = {job for job in unnoted.values() if job not in job_states}
    return tuple(run for run in named if run.job not in lost), events


def window(backfill: Backfill, policy: ScheduleSpec) -> tuple[float, float] | None:
    """Return the first and last tick that one decision may process; None if none is left."""
    if backfill.over or backfill.next is None:
        return None
    at: float | None = backfill.next
    tick_times = [backfill.next]
    for _ in range(WINDOW):
        at = _following(replace(backfill, next=at), policy)
        if at is None:
            break
        tick_times.append(at)
    return min(tick_times), max(tick_times)


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """The facts about a schedule that its backfill depends on.

    Attributes:
        name: name of the schedule.
        held: whether the schedule is paused.
        busy: ticks that the clock runs or retries.
        ticks: ticks of `window` that had a run or were skipped.
    """

    name: str
    held: bool
    busy: frozenset[float]
    ticks: Ticks


def advance(
    context: ScheduleContext,
    backfill: Backfill,
    policy: ScheduleSpec,
    runs: Mapping[str, RunSeen],
    now: float,
) -> tuple[Backfill, list[Event]]:
    """Return ``backfill`` after the ends of its runs, with its next runs, and the events.

    Args:
        policy: policy of the backfill, so that its ticks stay the same when the schedule changes.
        runs: the stored jobs of its runs, also those that the record does not name yet.
    """
    if backfill.over:
        return backfill, []
    events: list[Event] = []
    if backfill.canceled:
        backfill, events = _canceled(context, backfill, runs, now)
    for run in backfill.active:
        if has_ended(run, runs):
            backfill = _ended(backfill, run, runs.get(run.job), policy, now, events)
    if not context.held:
        backfill = _more_runs(context, backfill, policy, now)
    waits = (backfill.resumed or backfill.next is not None) and not backfill.canceled
    if not backfill.active and not waits:
        backfill = _at_its_end(backfill, now, events)
    return backfill, events


def _canceled(
    context: ScheduleContext, backfill: Backfill, runs: Mapping[str, RunSeen], now: float
) -> tuple[Backfill, list[Event]]:
    """Return a canceled backfill without the runs that were not submitted."""
    stored, events = stored_runs(context.name, backfill.active, runs, now)
    dropped = len(backfill.active) + len(backfill.resumed) - len(stored)
    passed = backfill.passed - dropped
    return replace(backfill, runs=(*stored, *backfill.failed), passed=passed), events


def _at_its_end(backfill: Backfill, now: float, events: list[Event]) -> Backfill:
    """Return ``backfill`` when no run is active and none follows.

    It is FAILED while a failed tick waits for a person, and else it has ended.
    """
    if not backfill.failed or backfill.canceled:
        events.append({"kind": "BACKFILL_ENDED", "at": now, "text": backfill.progress})
        # A stop that came when all of its ticks were done has canceled nothing.
        return replace(
            backfill, ended_at=now, canceled=backfill.canceled and backfill.done < backfill.total
        )
    if backfill.halted is not None:
        return backfill
    error = backfill.last_error
    text = backfill.progress if error is None else f"the last failed run: {error.text}"
    return _halted(backfill, Reason("TICKS_FAILED", text), now, events)


def _more_runs(
    context: ScheduleContext, backfill: Backfill, policy: ScheduleSpec, now: float
) -> Backfill:
    """Return ``backfill`` with as many active runs as it may have, resumed ticks first."""
    if backfill.goes_on:
        room = max(0, backfill.parallel - len(backfill.active))
        begin = backfill.resumed[:room]
        runs = tuple(_again(run) if run in begin else run for run in backfill.runs)
        backfill = replace(backfill, runs=runs)
    for _ in range(WINDOW):
        if not backfill.goes_on or len(backfill.active) >= backfill.parallel:
            break
        if backfill.next is None or (backfill.in_order and backfill.next in context.busy):
            break  # in order, a run that the clock has begun ends first
        backfill = _past_tick(context, backfill, backfill.next, policy, now)
    return backfill


def _past_tick(
    context: ScheduleContext, backfill: Backfill, at: float, policy: ScheduleSpec, now: float
) -> Backfill:
    """Return ``backfill`` past its next tick ``at``, with a run if the tick needs one."""
    tick = context.ticks.get(at, Tick(at))
    run = None if at in context.busy else _run_for(tick, backfill, now)
    left_failed = run is None and tick.outcome is TickOutcome.FAILED
    return replace(
        backfill,
        runs=backfill.runs if run is None else (*backfill.runs, run),
        next=_following(backfill, policy),
        passed=backfill.passed + 1,
        left=backfill.left + left_failed,
    )


def busy_ticks(record: ScheduleRecord) -> frozenset[float]:
    """Return the ticks that the clock runs or retries."""
    return frozenset(run.tick for run in (*record.runs, *record.retries) if not run.by_hand)


def needs_run(tick: Tick, redo: Redo, *, in_order: bool) -> bool:
    """Return whether a backfill adds a run to ``tick``.

    A backfill in order skips no failed tick.
    """
    match tick.outcome:
        case TickOutcome.DONE:
            return redo == "all"
        case TickOutcome.FAILED:
            return redo != "none" or in_order
        case TickOutcome.SKIPPED:
            return False
        case _:
            return True


def _run_for(tick: Tick, backfill: Backfill, now: float) -> Run | None:
    """Return the run that the backfill adds to ``tick``; None if the tick stays as it is."""
    if not needs_run(tick, backfill.redo, in_order=backfill.in_order):
        return None
    run = Run(tick=tick.at, at=now, by=backfill.by, backfill=backfill.id)
    match tick.outcome:
        case TickOutcome.DONE:
            return replace(run, number=tick.number + 1, redo=backfill.id)
        case TickOutcome.FAILED:
            return replace(run, number=tick.number + 1, retry_of=tick.job, redo=tick.redo)
        case TickOutcome.RUNNING:  # of a canceled backfill, or of a run that nobody follows
            return replace(run, number=tick.number, redo=tick.redo)
        case _:
            return run


def run_ended(
    backfill: Backfill, run: Run, job_state: RunSeen, policy: ScheduleSpec, now: float
) -> tuple[Backfill, list[Event]]:
    """Return ``backfill`` after the end of the run with this tick and number, and the events."""
    events: list[Event] = []
    for mine in backfill.active:
        if (mine.tick, mine.number) == (run.tick, run.number):
            backfill = _ended(backfill, mine, job_state, policy, now, events)
    return backfill, events


def given_up(
    backfill: Backfill, run: Run, why: Reason, policy: ScheduleSpec, now: float, events: list[Event]
) -> Backfill:
    """Return ``backfill`` after ``run`` failed for good."""
    others = tuple(mine for mine in backfill.runs if mine is not run)
    backfill = replace(backfill, runs=(*others, replace(run, job="", final=why, trouble=None)))
    many = len(backfill.failed) >= MAX_UNRESOLVED
    continues = policy.on_failure == "continue" and not backfill.in_order and not many
    if backfill.canceled or continues or backfill.halted is not None:
        return backfill
    text = f"the run of {tick_text(run.tick)} failed: {why.text}"
    return _halted(backfill, Reason(why.code, text), now, events)


def _again(run: Run) -> Run:
    """Return ``run`` to be submitted at once, with its full retry budget."""
    return replace(run, next_at=0.0, trouble=None, final=None, resumed=False, failures=0)


def resumed(backfill: Backfill) -> Backfill:
    """Return ``backfill`` after a resume: failed ticks get their full retry budget."""
    active = {run: run if run.job else _again(run) for run in backfill.active}
    runs = tuple(active.get(run) or replace(run, resumed=True) for run in backfill.runs)
    return replace(backfill, runs=runs, paused=False, paused_by="", halted=None)


def without_tick(backfill: Backfill, tick: float) -> Backfill:
    """Return ``backfill`` after a user skipped a tick without an active run.

    It continues unless another failed tick holds it.
    """
    runs = tuple(run for run in backfill.runs if run.tick != tick)
    holds = any(run.final is not None for run in runs) and backfill.halted is not None
    return replace(backfill, runs=runs, halted=backfill.halted if holds else None)


def _halted(backfill: Backfill, why: Reason, now: float, events: list[Event]) -> Backfill:
    events.append({"kind": "BACKFILL_FAILED", "at": now, "code": why.code, "text": why.text})
    return replace(backfill, halted=why)


def _following(backfill: Backfill, policy: ScheduleSpec) -> float | None:
    """Return the tick after the next one, in the order of the backfill; None after the last."""
    assert backfill.next is not None
    at = datetime.fromtimestamp(backfill.next, UTC)
    following = previous_tick(policy, at) if backfill.backwards else next_tick(policy, at)
    if following is None or not backfill.first <= following.timestamp() <= backfill.last:
        return None
    return following.timestamp()


def _ended(
    backfill: Backfill,
    run: Run,
    job_state: RunSeen | None,
    policy: ScheduleSpec,
    now: float,
    events: list[Event],
) -> Backfill:
    """Return ``backfill`` after the end of one of its runs.

    Args:
        job_state: None if the job is not stored any more.
    """
    others = tuple(mine for mine in backfill.runs if mine is not run)
    if job_state is None:  # a store that was rolled back: submitting the run again is the same job
        return replace(backfill, runs=(*others, replace(run, job="")))
    events.append(ended_event("BACKFILL_", run, job_state, now))
    if job_state.status is Status.FINISHED:
        return replace(backfill, runs=others)
    why = job_state.reason or Reason(str(job_state.status), f"it is {job_state.status}")
    error = RunFailure(run.job, run.tick, job_state.ended_at, why.code, why.text)
    failures, retry = run.failures + 1, policy.retry
    again = replace(
        run,
        number=run.number + 1,
        job="",
        at=now,
        retry_of=run.job,
        after=job_state.ended_at,
        failures=failures,
        tries=0,
    )
    backfill = replace(backfill, runs=(*others, again), last_error=error)
    by_person = job_state.status is not Status.FAILED
    if backfill.canceled or by_person or job_state.final or failures > retry.max:
        return given_up(backfill, again, why, policy, now, events)
    waiting = replace(again, next_at=now + doubled(retry.backoff, retry.max_backoff, failures - 1))
    return replace(backfill, runs=(*others, waiting))
