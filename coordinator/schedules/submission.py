"""Records on a schedule how the submit of a run ended. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Quiet, Run, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.backfill import given_up, run_ended, submit_event, tick_of
from unstuck.coordinator.schedules.run_end import after_end, backfill_succeeded
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.steps import Skip, policy_of

Noted = tuple[ScheduleRecord, list[dict[str, Any]]] | None
"""The record and the events of a note; None: it is known already."""


def submitted(record: ScheduleRecord, run: Run, job: str, backfill: str, now: float) -> Noted:
    """Return the record after ``run`` was submitted as ``job``, and the event.

    Args:
        backfill: the backfill that submitted the job, which may have been a run of its tick before.
    """
    changed = _noted(
        record, run, lambda mine: replace(mine, job=job, trouble=None, tries=0, next_at=0.0)
    )
    if changed is None:
        return None
    had = not any(mine.backfill == backfill for mine in record.going_on if _is_to_be(mine, run))
    event = submit_event(run, job, now, had=had)
    if run.number > 1 and not had:
        event["text"] = f"try {run.number} of this tick"
    event |= {"by": run.by} if run.by else {}
    if record.quiet is not None:
        event |= {"code": "NOTHING_NEW", "text": f"before it, {_of_quiet(record.quiet).summary}"}
    return replace(changed, quiet=None), [event]


def nothing_new(record: ScheduleRecord, run: Run, now: float) -> Noted:
    """Return the record after no new data had arrived for ``run``.

    There is no event, since this may happen every second.
    """
    mine = [noted_run for noted_run in record.runs if _is_to_be(noted_run, run)]
    if not mine:
        return None
    before = record.quiet or Quiet(run.tick, run.tick, 0, now)
    others = tuple(noted_run for noted_run in record.runs if noted_run not in mine)
    quiet = Quiet(before.first, run.tick, before.count + 1, now)
    return replace(record, runs=others, quiet=quiet), []


def _of_quiet(quiet: Quiet) -> Skip:
    return Skip("NOTHING_NEW", "nothing new lay there", quiet.first, quiet.last, quiet.count)


def stood_already(
    record: ScheduleRecord, run: Run, job: str, job_state: RunSeen, now: float
) -> Noted:
    """Return the record after the log turned out to have the package of ``run``, or its ABORT.

    Args:
        job: the job that wrote the entry, which has ended as ``job_state``.
    """
    changed = _noted(record, run, lambda mine: replace(mine, job=job, trouble=None))
    if changed is None:
        return None
    events: list[dict[str, Any]] = []
    for mine in _changed_runs(changed.runs, record.runs):
        changed, event = after_end(changed, mine, job_state, now)
        events += [event] if event else []
    if changed.backfill is not None and changed.backfill != record.backfill:
        mine = replace(run, job=job)
        backfill, more = run_ended(
            changed.backfill, mine, job_state, policy_of(changed.backfill.policy), now
        )
        changed = replace(changed, backfill=backfill)
        if job_state.status is Status.FINISHED:
            changed = backfill_succeeded(changed, mine, job_state)
        events += more
    return changed, events


def not_submitted(record: ScheduleRecord, run: Run, why: Reason, final: bool, now: float) -> Noted:
    """Return the record after ``run`` could not be submitted.

    Args:
        final: whether another try cannot help.
    """
    retry = policy_of(record.policy).retry

    def later(mine: Run) -> Run:
        wait = doubled(retry.backoff, retry.max_backoff, mine.tries)
        return replace(mine, trouble=why, tries=mine.tries + 1, next_at=now + wait)

    if (changed := _noted(record, run, later)) is None:
        return None
    event = {"kind": "NOT_SUBMITTED", "at": now, **tick_of(run), "code": why.code, "text": why.text}
    return _given_up(record, changed, why, event, now) if final else (changed, [event])


def _given_up(
    record: ScheduleRecord, changed: ScheduleRecord, why: Reason, event: dict[str, Any], now: float
) -> Noted:
    """Return ``changed`` with its new troubled runs failed for good, and the events."""
    events, backfill = [event], changed.backfill
    if backfill is not None:
        policy = policy_of(backfill.policy)
        for run in _changed_runs(backfill.runs, record.backfill.runs if record.backfill else ()):
            backfill = given_up(backfill, run, why, policy, now, events)
    troubled = _changed_runs(changed.runs, record.runs)
    retries = [replace(run, final=why, trouble=None) for run in troubled if not run.by_hand]
    runs = tuple(run for run in changed.runs if run not in troubled)
    changed = replace(changed, runs=runs, retries=(*changed.retries, *retries), backfill=backfill)
    return changed, events


def _changed_runs(runs: tuple[Run, ...], before: tuple[Run, ...]) -> list[Run]:
    return [run for run in runs if run not in before]


def _noted(record: ScheduleRecord, run: Run, change: Callable[[Run], Run]) -> ScheduleRecord | None:
    """Return the record with ``change`` applied to the run; None if no such run is to be submitted.

    A tick may have a run by the clock and one of a backfill: both are the same job.
    """

    def noted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        return tuple(
            change(noted_run) if _is_to_be(noted_run, run) else noted_run for noted_run in runs
        )

    backfill = record.backfill and replace(record.backfill, runs=noted(record.backfill.runs))
    changed = replace(record, runs=noted(record.runs), backfill=backfill)
    return None if changed == record else changed


def _is_to_be(noted_run: Run, run: Run) -> bool:
    """Return whether ``noted_run`` has the tick and number of ``run`` and is to be submitted."""
    if noted_run.job or noted_run.final is not None:
        return False
    tick_and_try = (noted_run.tick, noted_run.number, noted_run.by_hand)
    return tick_and_try == (run.tick, run.number, run.by_hand)
