"""Decides a schedule: the changes of its record, and when it is decided next. Pure.

``decide`` takes the steps that `next_step` returns, until the next step is to wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Run,
    ScheduleIntent,
    ScheduleRecord,
    check_schedule_status,
    derive,
)
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.backfill import (
    NO_TICKS,
    ScheduleContext,
    Ticks,
    advance,
    busy_ticks,
    ended_event,
    stored_runs,
)
from unstuck.coordinator.schedules.next_step import has_come, next_step
from unstuck.coordinator.schedules.run_end import after_end, backfill_succeeded, succeeded
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.steps import (
    CLOCKS_DIFFER,
    EMPTY_LOG,
    NOTHING,
    Finish,
    Halt,
    LogSeen,
    Noticed,
    Published,
    RunEnded,
    Skip,
    Stands,
    Step,
    Submit,
    Wait,
    passed,
    policy_of,
)

MAX_STEPS = 100  # in one decision; the rest follow with due = now
# Seconds between looks at a schedule with an active run, whose end makes it due.
LOOK = 60.0
TERM = 2.5  # seconds for which a run that is being submitted is left to one coordinator, by default
IDLE_LOOK = 600.0  # seconds between looks at a schedule that waits for a person
STANDS = Reason("DONE", "its package stands in the warehouse log")


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """The record of a schedule to commit, with its events and its next due time.

    Attributes:
        read_log_since: a tick that is skipped unless the warehouse log has its package; None
            without one.
    """

    record: ScheduleRecord
    events: tuple[dict[str, Any], ...]
    due: float | None
    read_log_since: float | None = None

    def submits(self, now: float) -> list[Run]:
        """Return the runs to submit, including those whose earlier submit was not recorded.

        While the schedule is paused, these are the runs that users requested. After a stop, there
        are none.
        """
        record, policy = self.record, policy_of(self.record.policy)
        runs = list(record.runs)
        if record.intent is not ScheduleIntent.RUN:
            runs = [run for run in runs if run.by and record.intent is ScheduleIntent.PAUSE]
        elif record.backfill is not None and not record.backfill.halted:
            runs += record.backfill.active
        return [run for run in runs if not run.job and has_come(run, policy, now)]


def decide(
    record: ScheduleRecord,
    runs: Mapping[str, RunSeen],
    now: float,
    published: Published = NOTHING,
    term: float = TERM,
    ticks_of_backfill: Ticks = NO_TICKS,
    log: LogSeen = EMPTY_LOG,
) -> ScheduleDecision:
    """Decide until there is nothing to do but wait.

    Args:
        runs: the stored jobs of its runs, also those that the record does not name yet.
        now: seconds, by the clock of Redis.
        published: the newest versions of the datasets that it follows.
        term: seconds after which another coordinator submits a run that is still being submitted.
        ticks_of_backfill: ticks in the `window` of its backfill that had a run or were skipped.
        log: its packages in the warehouse log, which must be read before a tick is skipped.
    """
    events: list[dict[str, Any]] = []
    if record.intent is ScheduleIntent.STOP:
        stored, events = stored_runs(record.name, record.runs, runs, now)
        record = replace(record, runs=stored)
    step: Step | None = None
    for _ in range(MAX_STEPS):
        step = next_step(record, runs, now, published)
        if isinstance(step, Wait) or _is_unread(step, log):
            break
        record, event = _after(record, _skipped_or_published(record, step, log), now)
        events += filter(None, [event])
    due, read_log_since = now, None
    if isinstance(step, Wait):
        due = _look_at(record, step, now, term)
    elif isinstance(step, Skip) and _is_unread(step, log):
        due, read_log_since = now + term, step.first
    record, more = _backfilled(record, runs, ticks_of_backfill, now)
    if any(event["kind"] == "BACKFILL_ENDED" for event in more):
        due = now
    events += more
    record = settled(record, now)
    looks = _looks(record, due, now, term)
    return ScheduleDecision(record, tuple(events), min(looks, default=None), read_log_since)


def _is_unread(step: Step, log: LogSeen) -> bool:
    """Return whether ``step`` skips ticks for which the warehouse log was not read."""
    return isinstance(step, Skip) and step.first < log.since


def _looks(record: ScheduleRecord, due: float, now: float, term: float) -> list[float]:
    """Return the times of the next looks at a schedule and at its backfill."""
    looks = [due] if record.runs or not record.status.terminal else []
    if record.open_backfill is not None:
        looks.append(_look_at_backfill(record, record.open_backfill, now, term))
    return looks


def earliest_package(record: ScheduleRecord, tick: float, after: float = 0.0) -> float:
    """Return the earliest time at which a package of ``tick`` may have been written.

    A clock that was ahead may have run the tick before its time.

    Args:
        after: when its last run ended.
    """
    return 0.0 if tick <= record.decided_to else max(tick, after) - CLOCKS_DIFFER


def pass_over(
    record: ScheduleRecord, skip: Skip, log: LogSeen, now: float
) -> tuple[ScheduleRecord, list[dict[str, Any]]]:
    """Return ``record`` after the ticks of ``skip``, and the events of these ticks."""
    events: list[dict[str, Any]] = []
    policy = policy_of(record.policy)
    while (left := passed(policy, record.cursor, skip.last)) is not None:
        step = _skipped_or_published(record, Skip(skip.code, skip.text, *left), log)
        record, event = _after(record, step, now)
        events += [event] if event else []
    return record, events


def _skipped_or_published(record: ScheduleRecord, step: Step, log: LogSeen) -> Step:
    """Return ``step``, or its first part if it skips ticks of which the log has packages."""
    if not isinstance(step, Skip):
        return step
    policy = policy_of(record.policy)
    in_span = [at for at in sorted(log.runs) if step.first <= at <= step.last]
    first = next((at for at in in_span if passed(policy, at - 0.001, at)), None)
    if first is None:
        return step
    before = passed(policy, record.cursor, first - 0.001)
    if before is None:
        return Stands(log.runs[first], noted=first in log.noted)
    return Skip(step.code, step.text, *before)


def _backfilled(
    record: ScheduleRecord, runs: Mapping[str, RunSeen], ticks: Ticks, now: float
) -> tuple[ScheduleRecord, list[dict[str, Any]]]:
    """Return ``record`` with its backfill advanced, and the events."""
    backfill = record.backfill
    if backfill is None:
        return record, []
    context = ScheduleContext(
        record.name, record.intent is ScheduleIntent.PAUSE, busy_ticks(record), ticks
    )
    advanced, events = advance(context, backfill, policy_of(backfill.policy), runs, now)
    record = replace(record, backfill=advanced)
    for run in backfill.runs:
        job_state = runs.get(run.job)
        if job_state is None or run in advanced.runs:
            continue
        if job_state.status is Status.FINISHED:
            record = backfill_succeeded(record, run, job_state)
    return record, events


def settled(record: ScheduleRecord, now: float) -> ScheduleRecord:
    """Return ``record`` with its new status. Raises: IllegalMove."""
    status = derive(record)
    check_schedule_status(record.name, record.status, status)
    return record if status is record.status else replace(record, status=status, since=now)


def _after(
    record: ScheduleRecord, step: Step, now: float
) -> tuple[ScheduleRecord, dict[str, Any] | None]:
    """Return the record after ``step``, and the event of the step."""
    match step:
        case RunEnded(run, job_state):
            return after_end(record, run, job_state, now)
        case Submit():
            return _begun(record, step, now), None
        case Skip(code):
            event = {"kind": "SKIPPED", "at": now, "code": code, "text": step.summary}
            return replace(record, cursor=max(record.cursor, step.last)), event
        case Stands(run, noted):
            job_state = RunSeen(Status.FINISHED, run.at, STANDS, version=run.version)
            event = ended_event("", Run(run.tick, job=run.job), job_state, now)
            passed_it = replace(record, cursor=max(record.cursor, run.tick))
            return succeeded(passed_it, run), None if noted else event
        case Noticed(at):
            return replace(record, new_at=at), None
        case Halt(reason):
            event = {"kind": "HALTED", "at": now, "code": reason.code, "text": reason.text}
            return replace(record, halted=reason), event
        case Finish():
            event = {"kind": "FINISHED", "at": now, "text": "no tick is left"}
            return replace(record, over=True), event
    raise AssertionError(step)


def _begun(record: ScheduleRecord, step: Submit, now: float) -> ScheduleRecord:
    """Return ``record`` with the run of ``step``, which is to be submitted."""
    run = step.run
    # A retry has the number 1 if its run could not be submitted; the cursor is past its tick.
    by_tick = run.number == 1 and not run.by and not step.more and run not in record.retries
    begun = replace(
        record,
        runs=(*record.runs, replace(run, at=now, next_at=0.0, final=None)),
        requests=_without(record.requests, run),
        retries=_without(record.retries, run),
    )
    if by_tick:
        begun = replace(begun, cursor=max(record.cursor, run.tick))
    if step.versions is not None:
        begun = replace(begun, followed=dict(step.versions), new_at=0.0)
    if step.more:  # leaves no gap in which a tick could have been free
        begun = replace(begun, more_at=0.0, busy_until=now)
    return begun


def _without(runs: tuple[Run, ...], run: Run) -> tuple[Run, ...]:
    return tuple(other for other in runs if other is not run)


def _look_at(record: ScheduleRecord, wait: Wait, now: float, term: float) -> float:
    """Return when the schedule is looked at next: at the end of its wait, or earlier."""
    times = [_look_at_run(run, now, term) for run in record.runs]
    # Where overlap allows it, retries run beside the ticks.
    times += [run.next_at for run in record.retries if run.next_at > now]
    # A wait that is over is being handled. A look at once would use up the turn of the sweep.
    until = wait.until or 0.0
    return min([*times, until if until > now else now + IDLE_LOOK])


def _look_at_backfill(record: ScheduleRecord, backfill: Backfill, now: float, term: float) -> float:
    held = record.intent is ScheduleIntent.PAUSE or backfill.next in busy_ticks(record)
    may_pass = backfill.goes_on and backfill.next is not None and not held
    if may_pass and len(backfill.active) < backfill.parallel:
        return now  # one decision could not pass all of the ticks
    return min([*(_look_at_run(run, now, term) for run in backfill.active), now + IDLE_LOOK])


def _look_at_run(run: Run, now: float, term: float) -> float:
    if run.job:
        return now + LOOK
    return run.next_at if run.next_at > now else now + term
