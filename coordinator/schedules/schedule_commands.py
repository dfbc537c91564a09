"""The commands for a schedule: what each does to its record, and in which states it is legal
(pure).

A repeated command changes nothing, and a refused one says in which state it was refused and what to
do instead.
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
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text
from unstuck.coordinator.schedules.backfill import (
    Ticks,
    Wanted,
    order_problem,
    resumed,
    without_tick,
)
from unstuck.coordinator.schedules.decide_schedule import (
    CLOCKS_DIFFER,
    EMPTY_LOG,
    LogSeen,
    Skip,
    pass_over,
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


def set_again(
    old: ScheduleRecord | None, new: ScheduleRecord, now: float, reason: str = ""
) -> ScheduleCommanded:
    """Make a schedule, or change what it repeats. The same content changes nothing.

    Args:
        new: as it is to be made, by ``new.set_by``, if there is none yet.
    """
    text = reason or ("its runs take over what they publish" if new.take_over else "")
    event = _event("SET", now, by=new.set_by, text=text)
    if old is None:
        cursor = now if new.last_success is None else min(now, new.last_success.tick)
        created = replace(new, cursor=cursor, since=now, set_at=now, made_at=cursor)
        return ScheduleCommanded(Answer.DONE, created, f"schedule {new.name} is set", (event,))
    if old.status.terminal:
        return _refused(old, f"and a schedule that has ended never changes; {_set_anew(old)}")
    new = replace(new, take_over=new.take_over or old.take_over)
    if (old.spec, old.warehouse, old.take_over) == (new.spec, new.warehouse, new.take_over):
        return ScheduleCommanded(Answer.ALREADY, old, f"schedule {old.name} is unchanged")
    taken: dict[str, Any] = {"spec": new.spec, "policy": new.policy, "builds_on": new.builds_on}
    taken |= {"warehouse": new.warehouse, "take_over": new.take_over}
    changed = replace(old, **taken, set_at=now, set_by=new.set_by)
    if _trigger(old) != _trigger(changed):
        changed = replace(_from_now(changed, now), seen=new.seen, new_at=0.0)
    events = (event, *_set_back(old, changed, now))
    return ScheduleCommanded(
        Answer.DONE, _tried_at_once(changed), f"schedule {old.name} is changed", events
    )


def command(
    record: ScheduleRecord,
    requested: str,
    now: float,
    by: str = "",
    reason: str = "",
    log: LogSeen = EMPTY_LOG,
) -> ScheduleCommanded:
    """The answer to ``requested``, a key of `JUDGES`, and the record after it.

    Args:
        now: seconds, by the clock of Redis.
        log: for a resume, what the warehouse log has of the ticks since the cursor.
    """
    if record.status.terminal:
        if requested == "stop":
            text = f"schedule {record.name} is {record.status} already"
            return ScheduleCommanded(Answer.ALREADY, record, text)
        return _refused(record, f"and a schedule that has ended never changes; {_set_anew(record)}")
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
    """Run ticks of the past. Given again while it goes on, it changes nothing but ``parallel``.

    Args:
        ticks: of the schedule, that had a run or were skipped; all of them, if its runs build on
            each other.
        reads: the version from which ``requested.from_here`` starts; None: the newest.
    """
    policy, old, name = policy_of(record.policy), record.backfill, record.name
    if record.status is ScheduleStatus.STOPPED:
        return _refused(record, f"and a schedule that has ended never changes; {_set_anew(record)}")
    wrong = requested.problem(policy, now)
    if not wrong and requested.from_here and not record.builds_on:
        wrong = (
            "its runs do not build on each other, so --from-here has no meaning: give --from "
            "and --to"
        )
    if wrong:
        return ScheduleCommanded(
            Answer.REFUSED, record, f"schedule {name} cannot be backfilled: {wrong}"
        )
    new = replace(
        requested.begun(policy, record.policy, now, by),
        in_order=bool(record.builds_on),
        reads=reads,
    )
    event = {"kind": "USER_BACKFILL", "at": now, "by": by, "text": reason or f"{new.total:,} ticks"}
    if old is not None and not old.over:
        if _range(old) != _range(new):
            text = (
                f"and its backfill is {old.status}: {old.progress}; `unstuck schedule "
                f"cancel-backfill {name}` ends it"
            )
            return _refused(record, text)
        if old.parallel == new.parallel or old.canceled:
            return ScheduleCommanded(
                Answer.ALREADY, record, f"{_backfill(record)} is {old.status}: {old.progress}"
            )
    if record.builds_on and (wrong := order_problem(record, requested, policy, ticks, now)):
        return ScheduleCommanded(
            Answer.REFUSED, record, f"schedule {name} cannot be backfilled so: {wrong}"
        )
    if old is not None and not old.over:
        new = replace(old, parallel=new.parallel)
    text = f"{_backfill(record)} is on record: {new.progress}, at most {new.parallel} at once"
    if record.intent is ScheduleIntent.PAUSE:
        text += f"; it waits until the schedule is resumed: `unstuck schedule resume {name}`"
    return ScheduleCommanded(Answer.DONE, replace(record, backfill=new), text, (event,))


def run_by_hand(
    record: ScheduleRecord, params: Mapping[str, Any], now: float, by: str = "", reason: str = ""
) -> ScheduleCommanded:
    """Start a run that belongs to no tick, with these values of parameters, whatever the clock
    waits for.
    """
    name = record.name
    if record.status.terminal:
        return _refused(record, f"and a schedule that has ended never changes; {_set_anew(record)}")
    if record.requests:
        return ScheduleCommanded(
            Answer.REFUSED, record, f"a run of schedule {name} had been asked for before"
        )
    manual_run = Run(tick=round(now, 3), by=by or "a person", by_hand=True, params=dict(params))
    event = _event("USER_RUN", now, was=record.status, by=by, text=reason)
    changed = replace(record, requests=(manual_run,))
    return ScheduleCommanded(
        Answer.DONE, changed, f"a run of schedule {name} is on record", (event,)
    )


def skip(
    record: ScheduleRecord,
    tick: Tick,
    stored: Collection[str],
    now: float,
    by: str = "",
    reason: str = "",
) -> ScheduleCommanded:
    """Leave a tick out: it gets no run any more, and what waited for it continues.

    Args:
        tick: as it stands; its outcome is that of its current run.
        stored: jobs of its runs that are in the store, although nobody has noted that.
    """
    name, text = record.name, tick_text(tick.at)
    which = f"tick {text} of schedule {name}"
    if record.status is ScheduleStatus.STOPPED:
        return _refused(record, f"and a schedule that has ended never changes; {_set_anew(record)}")
    if tick.outcome is TickOutcome.SKIPPED:
        return ScheduleCommanded(Answer.ALREADY, record, f"{which} is skipped already")
    own = [run for run in record.going_on if run.tick == tick.at and not run.by_hand]
    begun = (
        run
        for run in own
        if run.job or run.tries or run.next_at <= now or run.job_id(name) in stored
    )
    if going_on := next(begun, None):
        end = (
            f"job {going_on.job} runs; `unstuck cancel {going_on.job}` ends it"
            if going_on.job
            else "a run begins"
        )
        return ScheduleCommanded(Answer.REFUSED, record, f"{which} cannot be skipped: {end}")
    if tick.outcome is TickOutcome.DONE:
        return ScheduleCommanded(
            Answer.REFUSED, record, f"{which} cannot be skipped: job {tick.job} is done"
        )
    if not _is_tick(record, tick.at, now) and tick.outcome is TickOutcome.MISSING:
        return ScheduleCommanded(
            Answer.REFUSED, record, f"{which} cannot be skipped: no such tick has come"
        )
    backfill = record.backfill and without_tick(record.backfill, tick.at)
    retries = tuple(run for run in record.retries if run.tick != tick.at)
    halted = (
        record.halted if any(run.final for run in retries) or retries == record.retries else None
    )
    changed = replace(record, backfill=backfill, retries=retries, halted=halted)
    event = _event("USER_SKIP", now, tick=text, by=by, text=reason)
    return ScheduleCommanded(Answer.DONE, changed, f"{which} is skipped", (event,))


def _is_tick(record: ScheduleRecord, at: float, now: float) -> bool:
    """Whether the clock of the schedule has a tick at this time, which has come."""
    span = passed(policy_of(record.policy), at - 0.001, at)
    return span is not None and at <= now


def backfill_command(
    record: ScheduleRecord, requested: str, now: float, by: str = "", reason: str = ""
) -> ScheduleCommanded:
    """The answer to ``requested`` (``pause``, ``resume`` or ``cancel``) of a backfill; its runs
    that go on may end.
    """
    old, which = record.backfill, _backfill(record)
    if old is None or old.over:
        if old is not None and old.canceled and requested == "cancel":
            return ScheduleCommanded(
                Answer.ALREADY, record, f"{which} is canceled already: {old.progress}"
            )
        return _refused(record, "and no backfill of it goes on")
    new, text = {
        "pause": (replace(old, paused=True, paused_by=by), "is paused"),
        "resume": (resumed(old), "goes on"),
        "cancel": (replace(old, canceled=True), "is canceled; its runs that go on may end"),
    }[requested]
    if old.canceled or new == old or (requested == "pause" and old.paused):
        return ScheduleCommanded(Answer.ALREADY, record, f"{which} is {old.status}: {old.progress}")
    event = _event(f"USER_BACKFILL_{requested.upper()}", now, by=by, text=reason)
    return ScheduleCommanded(
        Answer.DONE, replace(record, backfill=new), f"{which} {text}: {new.progress}", (event,)
    )


def _event(kind: str, at: float, **texts: str) -> dict[str, Any]:
    return {"kind": kind, "at": at, **{name: text for name, text in texts.items() if text}}


def goes_on(record: ScheduleRecord) -> str:
    """Why the schedule cannot be removed, and what to do instead; empty if no run of it goes on."""
    name, jobs = record.name, [run.job for run in record.going_on if run.job]
    if not record.going_on:
        return ""
    what = (
        f"job {', '.join(jobs)} goes on, or its end is not noted yet"
        if jobs
        else "a run is being submitted"
    )
    cancel = f", and `unstuck cancel {' '.join(jobs)}` ends what goes on" if jobs else ""
    stop = f"`unstuck schedule stop {name}` starts no further run{cancel}"
    return f"schedule {name} is not removed: {what}; {stop}; then remove it again"


def _range(backfill: Backfill) -> tuple[object, ...]:
    return backfill.first, backfill.last, backfill.redo, backfill.backwards, backfill.reads


def _backfill(record: ScheduleRecord) -> str:
    return f"the backfill of schedule {record.name}"


def _pause(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    if record.intent is ScheduleIntent.PAUSE:
        return ScheduleCommanded(
            Answer.ALREADY, record, f"schedule {record.name} is paused already"
        )
    text = f"schedule {record.name} is paused{_running(record)}"
    return ScheduleCommanded(Answer.DONE, replace(record, intent=ScheduleIntent.PAUSE), text)


def _resume(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    paused = record.intent is ScheduleIntent.PAUSE
    if not paused and record.halted is None:
        if record.status is ScheduleStatus.RETRYING:
            return _refused(
                record,
                f"and tries again by itself; to try at once: `unstuck schedule run {record.name}`",
            )
        text = (
            f"schedule {record.name} is {record.status}: it is not paused, so there is nothing "
            "to resume"
        )
        return ScheduleCommanded(Answer.ALREADY, record, text)
    why = (
        f"paused{f' by {record.intent_by}' if record.intent_by else ''}"
        if paused
        else "it was HALTED"
    )
    missed = passed(policy_of(record.policy), record.cursor, now)
    current, events = record, list[dict[str, Any]]()
    if missed is not None:
        current, events = pass_over(
            record, Skip("PAUSED" if paused else "MISSED", why, *missed), log, now
        )
    fresh: dict[str, Any] = {"failures": 0, "first_error": None, "last_error": None}
    goes_on = replace(_from_now(_tried_at_once(current), now), intent=ScheduleIntent.RUN, **fresh)
    text = f"schedule {record.name} goes on, with its full retry budget; its ticks count from now"
    return ScheduleCommanded(Answer.DONE, goes_on, text, tuple(events))


def _run(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    name, asked_by = record.name, by or "a person"
    if record.retries and record.intent is ScheduleIntent.PAUSE:
        # Under a pause, only what a person asks for is run.
        asked_for = tuple(replace(run, by=asked_by) for run in _tried_at_once(record).retries)
        again = replace(record, halted=None, retries=(), requests=(*record.requests, *asked_for))
        return ScheduleCommanded(
            Answer.DONE, again, f"schedule {name} tries its failed run at once"
        )
    if record.retries:
        return ScheduleCommanded(
            Answer.DONE, _tried_at_once(record), f"schedule {name} tries its failed run at once"
        )
    if trouble := record.trouble:
        hurried = tuple(
            replace(run, next_at=now, by=asked_by) if run.trouble else run for run in record.runs
        )
        text = f"schedule {name} tries at once to submit its run, which had failed: {trouble.text}"
        return ScheduleCommanded(Answer.DONE, replace(record, runs=hurried), text)
    if record.requests:
        return ScheduleCommanded(
            Answer.ALREADY, record, f"a run of schedule {name} had been asked for before"
        )
    if record.runs and policy_of(record.policy).overlap == "skip":
        return ScheduleCommanded(
            Answer.ALREADY, record, f"a run of schedule {name} goes on{_running(record)}"
        )
    manual_run = Run(tick=round(now, 3), by=asked_by, by_hand=True)
    changed = replace(_tried_at_once(record), requests=(manual_run,))
    return ScheduleCommanded(Answer.DONE, changed, f"a run of schedule {name} is on record")


def _is_ahead(record: ScheduleRecord, now: float) -> bool:
    """Whether ticks were decided by a clock that was ahead, so that none comes for a while."""
    return record.cursor > now + CLOCKS_DIFFER


def _from_now(record: ScheduleRecord, now: float) -> ScheduleRecord:
    """``record`` with its ticks counted from now, also after a clock that was ahead for a while."""
    if not _is_ahead(record, now):
        return replace(record, cursor=max(now, record.cursor))
    runs = tuple(replace(run, at=min(run.at, now)) for run in record.runs)
    decided_to = max(record.decided_to, record.cursor)
    return replace(
        record, cursor=now, busy_from=0.0, busy_until=0.0, runs=runs, decided_to=decided_to
    )


def _set_back(old: ScheduleRecord, new: ScheduleRecord, now: float) -> tuple[dict[str, Any], ...]:
    """The event if ticks count from now again."""
    if new.cursor >= old.cursor:
        return ()
    upto = f"the clock was set back, and ticks up to {tick_text(old.cursor)} had been decided"
    return (
        _event(
            "COUNTS_FROM_NOW",
            now,
            text=f"{upto}; those since then had no run, and the next one is run",
        ),
    )


def _stop(record: ScheduleRecord, now: float, by: str, log: LogSeen) -> ScheduleCommanded:
    fill = record.backfill
    backfill = fill if fill is None or fill.over else replace(fill, canceled=True)
    stopped = replace(
        record, intent=ScheduleIntent.STOP, requests=(), retries=(), backfill=backfill
    )
    return ScheduleCommanded(
        Answer.DONE, stopped, f"schedule {record.name} is stopped for good{_running(record)}"
    )


JUDGES: dict[str, Callable[[ScheduleRecord, float, str, LogSeen], ScheduleCommanded]] = {
    "pause": _pause,
    "resume": _resume,
    "run": _run,
    "stop": _stop,
}


def _tried_at_once(record: ScheduleRecord) -> ScheduleRecord:
    """``record`` with what has failed to be tried at once, also where the schedule was halted for
    it.
    """

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


def _set_anew(record: ScheduleRecord) -> str:
    return f"`unstuck schedule remove {record.name}`, and set it again"


def _refused(record: ScheduleRecord, why: str) -> ScheduleCommanded:
    return ScheduleCommanded(
        Answer.REFUSED, record, f"schedule {record.name} is {record.status}, {why}"
    )
