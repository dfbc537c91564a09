"""The commands for a schedule: their effect on its record, and their legal states. Pure.

A repeated command changes nothing. The text of a refusal names the state of the schedule and what
to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.errors import Damaged
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Run,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text, utc
from unstuck.coordinator.schedules.backfill import (
    Ticks,
    Wanted,
    resumed,
    without_tick,
)
from unstuck.coordinator.schedules.backfill_order import order_problem
from unstuck.coordinator.schedules.decide_schedule import pass_over
from unstuck.coordinator.schedules.steps import (
    CLOCKS_DIFFER,
    EMPTY_LOG,
    LogSeen,
    Skip,
    passed,
    policy_of,
)


@dataclass(frozen=True, slots=True)
class ScheduleCommanded:
    """The result of a command: the record after it, its events, and a sentence for the user."""

    answer: Answer
    record: ScheduleRecord
    text: str
    events: tuple[dict[str, Any], ...] = ()


def _done(record: ScheduleRecord, text: str, *events: dict[str, Any]) -> ScheduleCommanded:
    return ScheduleCommanded(Answer.DONE, record, text, events)


def _already(record: ScheduleRecord, text: str) -> ScheduleCommanded:
    return ScheduleCommanded(Answer.ALREADY, record, text)


def _impossible(record: ScheduleRecord, text: str) -> ScheduleCommanded:
    return ScheduleCommanded(Answer.REFUSED, record, text)


def _refused(record: ScheduleRecord, why: str) -> ScheduleCommanded:
    return _impossible(record, f"schedule {record.name} is {record.status}, {why}")


def _has_ended(record: ScheduleRecord) -> ScheduleCommanded:
    again = f"`unstuck schedule remove {record.name}`, and set it again"
    return _refused(record, f"and a schedule that has ended never changes; {again}")


def set_again(
    old: ScheduleRecord | None, new: ScheduleRecord, now: float, reason: str = ""
) -> ScheduleCommanded:
    """Create a schedule, or change its spec. The same spec changes nothing.

    Args:
        new: the requested record; ``set_by`` is the user.
    """
    text = reason or ("its runs take over what they publish" if new.take_over else "")
    event = _event("SET", now, by=new.set_by, text=text)
    if old is None:
        cursor = now if new.last_success is None else min(now, new.last_success.tick)
        created = replace(new, cursor=cursor, since=now, set_at=now, made_at=cursor)
        return _done(created, f"schedule {new.name} is set", event)
    if old.status.terminal:
        return _has_ended(old)
    new = replace(new, take_over=new.take_over or old.take_over)
    if (old.spec, old.warehouse, old.take_over) == (new.spec, new.warehouse, new.take_over):
        return _already(old, f"schedule {old.name} is unchanged")
    changed = replace(
        old,
        spec=new.spec,
        policy=new.policy,
        builds_on=new.builds_on,
        warehouse=new.warehouse,
        take_over=new.take_over,
        set_at=now,
        set_by=new.set_by,
    )
    if _trigger(old) != _trigger(changed):
        changed = replace(_from_now(changed, now), followed=new.followed, new_at=0.0)
    text = f"schedule {old.name} is changed"
    return _done(_tried_at_once(changed), text, event, *_set_back(old, changed, now))


def command(
    record: ScheduleRecord,
    requested: str,
    now: float,
    by: str = "",
    reason: str = "",
    log: LogSeen = EMPTY_LOG,
) -> ScheduleCommanded:
    """Return the answer to ``requested``, a key of `JUDGES`, and the record after it.

    Args:
        now: seconds, by the clock of Redis.
        log: for a resume, the packages in the warehouse log of ticks since the cursor.
    """
    if record.status.terminal:
        if requested == "stop":
            return _already(record, f"schedule {record.name} is {record.status} already")
        return _has_ended(record)
    ahead = requested in ("resume", "run") and _is_ahead(record, now)
    start = _from_now(record, now) if ahead else record
    result = JUDGES[requested](start, now, by, log)
    if ahead and result.answer is not Answer.DONE:
        text = f"the ticks of schedule {record.name} count from now"
        result = replace(result, answer=Answer.DONE, text=text)
    if result.answer is not Answer.DONE:
        return result
    event = _event(f"USER_{requested.upper()}", now, was=record.status, by=by, text=reason)
    updated = result.record
    if updated.intent is not record.intent:
        updated = replace(updated, intent_at=now, intent_by=by, intent_why=reason)
    return replace(
        result, record=updated, events=(event, *result.events, *_set_back(record, updated, now))
    )


def begin_backfill(
    record: ScheduleRecord,
    requested: Wanted,
    ticks: Ticks,
    now: float,
    by: str = "",
    reason: str = "",
    reads: int | None = None,
) -> ScheduleCommanded:
    """Run ticks of the past. While the backfill is active, a repeat changes only ``parallel``.

    Args:
        ticks: ticks of the schedule that had a run or were skipped; all of them, if its runs build
            on each other.
        reads: the version from which ``requested.from_here`` starts; None: the newest.
    """
    policy, current, name = policy_of(record.policy), record.open_backfill, record.name
    if record.status is ScheduleStatus.STOPPED:
        return _has_ended(record)
    if wrong := _backfill_problem(record, requested, now):
        return _impossible(record, f"schedule {name} cannot be backfilled: {wrong}")
    new = replace(
        requested.begun(policy, record.policy, now, by),
        in_order=bool(record.builds_on),
        reads=reads,
    )
    event = _event("USER_BACKFILL", now, by=by, text=reason or f"{new.total:,} ticks")
    if current is not None and (answer := _while_backfilling(record, current, new)) is not None:
        return answer
    if record.builds_on and (wrong := order_problem(record, requested, policy, ticks, now)):
        return _impossible(record, f"schedule {name} cannot be backfilled so: {wrong}")
    if current is not None:
        new = replace(current, parallel=new.parallel)
    text = f"{_backfill(record)} is on record: {new.progress}, at most {new.parallel} at once"
    if record.intent is ScheduleIntent.PAUSE:
        text += f"; it waits until the schedule is resumed: `unstuck schedule resume {name}`"
    return _done(replace(record, backfill=new), text, event)


def _while_backfilling(
    record: ScheduleRecord, current: Backfill, new: Backfill
) -> ScheduleCommanded | None:
    """Return the answer to a backfill during another one; None if ``parallel`` changes."""
    state = f"is {current.status}: {current.progress}"
    if _range(current) != _range(new):
        cancel = f"`unstuck schedule cancel-backfill {record.name}` ends it"
        return _refused(record, f"and its backfill {state}; {cancel}")
    if current.parallel == new.parallel or current.canceled:
        return _already(record, f"{_backfill(record)} {state}")
    return None


def _backfill_problem(record: ScheduleRecord, requested: Wanted, now: float) -> str:
    wrong = requested.problem(policy_of(record.policy), now)
    if wrong or record.builds_on or not requested.from_here:
        return wrong
    return (
        "its runs do not build on each other, so --from-here has no meaning: give --from and --to"
    )


def run_by_hand(
    record: ScheduleRecord, params: Mapping[str, Any], now: float, by: str = "", reason: str = ""
) -> ScheduleCommanded:
    """Start a run without a tick, with these parameter values, independently of the clock."""
    name = record.name
    if record.status.terminal:
        return _has_ended(record)
    if record.requests:
        return _impossible(record, f"a run of schedule {name} had been asked for before")
    manual_run = Run(tick=round(now, 3), by=by or "a person", by_hand=True, params=dict(params))
    event = _event("USER_RUN", now, was=record.status, by=by, text=reason)
    changed = replace(record, requests=(manual_run,))
    return _done(changed, f"a run of schedule {name} is on record", event)


def skip(
    record: ScheduleRecord,
    tick: Tick,
    stored: Collection[str],
    now: float,
    by: str = "",
    reason: str = "",
) -> ScheduleCommanded:
    """Skip a tick: it gets no further run, and a schedule that waited for it continues.

    Args:
        tick: its outcome is that of its current run.
        stored: stored jobs of its runs, also those that the record does not name yet.
    """
    text = tick_text(tick.at)
    which = f"tick {text} of schedule {record.name}"
    if record.status is ScheduleStatus.STOPPED:
        return _has_ended(record)
    if tick.outcome is TickOutcome.SKIPPED:
        return _already(record, f"{which} is skipped already")
    if why := _why_not_skipped(record, tick, stored, now):
        return _impossible(record, f"{which} cannot be skipped: {why}")
    backfill = record.backfill and without_tick(record.backfill, tick.at)
    retries = tuple(run for run in record.retries if run.tick != tick.at)
    changed = replace(record, backfill=backfill, retries=retries)
    if retries != record.retries and not any(run.final for run in retries):
        changed = replace(changed, halted=None)
    event = _event("USER_SKIP", now, tick=text, by=by, text=reason)
    return _done(changed, f"{which} is skipped", event)


def _why_not_skipped(
    record: ScheduleRecord, tick: Tick, stored: Collection[str], now: float
) -> str:
    """Return why a tick cannot be skipped; empty if it can."""
    for run in record.going_on:
        if run.tick != tick.at or run.by_hand:
            continue
        if run.job:
            return f"job {run.job} runs; `unstuck cancel {run.job}` ends it"
        is_due = run.tries or run.next_at <= now
        if is_due or run.job_id(record.name) in stored:
            return "a run begins"
    if tick.outcome is TickOutcome.DONE:
        return f"job {tick.job} is done"
    if tick.outcome is TickOutcome.MISSING and not _is_tick(record, tick.at, now):
        return "no such tick has come"
    return ""


def _is_tick(record: ScheduleRecord, at: float, now: float) -> bool:
    """Return whether the clock of the schedule has a tick at this time, which has come."""
    span = passed(policy_of(record.policy), at - 0.001, at)
    return span is not None and at <= now


def command_that_runs(record: ScheduleRecord, tick: Tick, ticks: Ticks, now: float) -> str:
    """Return a command that runs a failed ``tick`` again and is legal in the state of ``record``.

    Args:
        ticks: as in `begin_backfill`.
    """
    name, at, fill = record.name, tick_text(tick.at), record.backfill
    held = () if fill is None or fill.over or fill.canceled else fill.runs
    backfill = f"unstuck schedule backfill {name}"
    options: list[tuple[str, ScheduleCommanded]]
    if any(run.tick == tick.at for run in record.retries):
        options = [(f"unstuck schedule run {name}", command(record, "run", now))]
    elif any(run.tick == tick.at for run in held):
        resume = backfill_command(record, "resume", now)
        options = [(f"unstuck schedule resume-backfill {name}", resume)]
    else:
        alone = Wanted(utc(tick.at), utc(tick.at), redo="failed")
        onward = Wanted.between(policy_of(record.policy), at, None, redo="all", from_here=True)
        options = [
            (f"{backfill} --from {at} {option}", begin_backfill(record, requested, ticks, now))
            for option, requested in (
                (f"--to {at} --redo failed", alone),
                ("--from-here", onward),
            )
        ]
    accepted = (text for text, commanded in options if commanded.answer is Answer.DONE)
    return next(accepted, f"unstuck schedule why {name}")


def backfill_command(
    record: ScheduleRecord, requested: str, now: float, by: str = "", reason: str = ""
) -> ScheduleCommanded:
    """Return the answer to ``requested``, a key of `_BACKFILL_CHANGES`; active runs may end."""
    old, which = record.backfill, _backfill(record)
    again = old is not None and old.canceled and requested == "cancel"
    if old is None or (old.over and not again):
        return _refused(record, "and no backfill of it goes on")
    if old.over:
        return _already(record, f"{which} is canceled already: {old.progress}")
    change, outcome = _BACKFILL_CHANGES[requested]
    new = change(old, by)
    if old.canceled or new == old:
        return _already(record, f"{which} is {old.status}: {old.progress}")
    event = _event(f"USER_BACKFILL_{requested.upper()}", now, by=by, text=reason)
    text = f"{which} {outcome}: {new.progress}"
    return _done(replace(record, backfill=new), text, event)


# Of each command for a backfill: the backfill after it, and how it stands then.
_BACKFILL_CHANGES: dict[str, tuple[Callable[[Backfill, str], Backfill], str]] = {
    "pause": (
        lambda old, by: old if old.paused else replace(old, paused=True, paused_by=by),
        "is paused",
    ),
    "resume": (lambda old, by: resumed(old), "goes on"),
    "cancel": (
        lambda old, by: replace(old, canceled=True),
        "is canceled; its runs that go on may end",
    ),
}


def _event(kind: str, at: float, **texts: str) -> dict[str, Any]:
    return {"kind": kind, "at": at, **{name: text for name, text in texts.items() if text}}


def goes_on(record: ScheduleRecord) -> str:
    """Return why the schedule cannot be removed, and what to do; empty if no run is active."""
    name, jobs = record.name, [run.job for run in record.going_on if run.job]
    if not record.going_on:
        return ""
    what, cancel = "a run is being submitted", ""
    if jobs:
        what = f"job {', '.join(jobs)} goes on, or its end is not noted yet"
        cancel = f", and `unstuck cancel {' '.join(jobs)}` ends what goes on"
    stop = f"`unstuck schedule stop {name}` starts no further run{cancel}"
    return f"schedule {name} is not removed: {what}; {stop}; then remove it again"


def _range(backfill: Backfill) -> tuple[object, ...]:
    return backfill.first, backfill.last, backfill.redo, backfill.backwards, backfill.reads


def _backfill(record: ScheduleRecord) -> str:
    return f"the backfill of schedule {record.name}"


def _pause(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    if record.intent is ScheduleIntent.PAUSE:
        return _already(record, f"schedule {record.name} is paused already")
    text = f"schedule {record.name} is paused{_running(record)}"
    return _done(replace(record, intent=ScheduleIntent.PAUSE), text)


def _resume(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    name = record.name
    if record.intent is ScheduleIntent.PAUSE:
        paused_by = f" by {record.intent_by}" if record.intent_by else ""
        code, why = "PAUSED", f"paused{paused_by}"
    elif record.halted is not None:
        code, why = "MISSED", "it was HALTED"
    elif record.status is ScheduleStatus.RETRYING:
        at_once = f"to try at once: `unstuck schedule run {name}`"
        return _refused(record, f"and tries again by itself; {at_once}")
    else:
        text = (
            f"schedule {name} is {record.status}: it is not paused, so there is nothing to resume"
        )
        return _already(record, text)
    missed = passed(policy_of(record.policy), record.cursor, now)
    current, events = record, list[dict[str, Any]]()
    if missed is not None:
        current, events = pass_over(record, Skip(code, why, *missed), log, now)
    resumed_record = replace(
        _from_now(_tried_at_once(current), now),
        intent=ScheduleIntent.RUN,
        failures=0,
        first_error=None,
        last_error=None,
    )
    text = f"schedule {name} goes on, with its full retry budget; its ticks count from now"
    return _done(resumed_record, text, *events)


def _run(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    name, asked_by = record.name, by or "a person"
    if record.retries:
        again = _tried_at_once(record)
        if record.intent is ScheduleIntent.PAUSE:
            # Under a pause, only the runs that a person requests start.
            requests = tuple(replace(run, by=asked_by) for run in again.retries)
            again = replace(again, retries=(), requests=(*record.requests, *requests))
        return _done(again, f"schedule {name} tries its failed run at once")
    if trouble := record.trouble:
        hurried = tuple(
            replace(run, next_at=now, by=asked_by) if run.trouble else run for run in record.runs
        )
        text = f"schedule {name} tries at once to submit its run, which had failed: {trouble.text}"
        return _done(replace(record, runs=hurried), text)
    if record.requests:
        return _already(record, f"a run of schedule {name} had been asked for before")
    if record.runs and policy_of(record.policy).overlap == "skip":
        return _already(record, f"a run of schedule {name} goes on{_running(record)}")
    manual_run = Run(tick=round(now, 3), by=asked_by, by_hand=True)
    changed = replace(_tried_at_once(record), requests=(manual_run,))
    return _done(changed, f"a run of schedule {name} is on record")


def _is_ahead(record: ScheduleRecord, now: float) -> bool:
    """Return whether a clock that was ahead decided ticks, so that none comes for a while."""
    return record.cursor > now + CLOCKS_DIFFER


def _from_now(record: ScheduleRecord, now: float) -> ScheduleRecord:
    """Return ``record`` with its ticks counted from now, also after a clock that was ahead."""
    if not _is_ahead(record, now):
        return replace(record, cursor=max(now, record.cursor))
    runs = tuple(replace(run, at=min(run.at, now)) for run in record.runs)
    decided_to = max(record.decided_to, record.cursor)
    return replace(
        record, cursor=now, busy_from=0.0, busy_until=0.0, runs=runs, decided_to=decided_to
    )


def _set_back(old: ScheduleRecord, new: ScheduleRecord, now: float) -> tuple[dict[str, Any], ...]:
    """Return an event if ticks count from an earlier time again."""
    if new.cursor >= old.cursor:
        return ()
    upto = f"the clock was set back, and ticks up to {tick_text(old.cursor)} had been decided"
    text = f"{upto}; those since then had no run, and the next one is run"
    return (_event("COUNTS_FROM_NOW", now, text=text),)


def _stop(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    stopped = replace(record, intent=ScheduleIntent.STOP, requests=(), retries=())
    if record.open_backfill is not None:
        stopped = replace(stopped, backfill=replace(record.open_backfill, canceled=True))
    return _done(stopped, f"schedule {record.name} is stopped for good{_running(record)}")


JUDGES: dict[str, Callable[[ScheduleRecord, float, str, LogSeen], ScheduleCommanded]] = {
    "pause": _pause,
    "resume": _resume,
    "run": _run,
    "stop": _stop,
}


def _tried_at_once(record: ScheduleRecord) -> ScheduleRecord:
    """Return ``record`` with its failed runs tried at once, and without a halt."""

    def again(run: Run) -> Run:
        # Nobody can take over the work of a job that cannot be read.
        unread = run.final is not None and run.final.code == Damaged.code
        return replace(run, next_at=0.0, final=None, retry_of="" if unread else run.retry_of)

    retries = tuple(map(again, record.retries))
    return replace(record, halted=None, retries=retries)


def _trigger(record: ScheduleRecord) -> tuple[object, ...]:
    policy = policy_of(record.policy)
    return policy.cron, policy.zone, policy.every, policy.after


def _running(record: ScheduleRecord) -> str:
    jobs = ", ".join(run.job for run in record.runs if run.job)
    return f"; job {jobs} goes on" if jobs else ""
