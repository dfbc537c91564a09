"""Notes on the record of a schedule how the try to submit a run ended (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Quiet, Run, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.backfill import given_up, run_ended, submit_event, tick_of
from unstuck.coordinator.schedules.decide_schedule import (
    Skip,
    after_end,
    backfill_succeeded,
    policy_of,
)
from unstuck.coordinator.schedules.run_outcome import RunSeen

Noted = tuple[ScheduleRecord, list[dict[str, Any]]] | None
"""The record and the events of a note; None: it is known already."""


def submitted(record: ScheduleRecord, run: Run, job: str, backfill: str, now: float) -> Noted:
    """The record once ``run`` is submitted as ``job``, and the event.

    Args:
        backfill: that submitted the job, which may have been the run of its tick before.
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
        event |= {"code": "NOTHING_NEW", "text": f"before it, {_of_quiet(record.quiet).told}"}
    return replace(changed, quiet=None), [event]


def nothing_new(record: ScheduleRecord, run: Run, now: float) -> Noted:
    """The record if nothing new lies there for ``run``. No event: there may be one in each
    second.
    """
    mine = [noted_run for noted_run in record.runs if _is_to_be(noted_run, run)]
    if not mine:
        return None
    first, count = (
        (run.tick, 1) if record.quiet is None else (record.quiet.first, record.quiet.count + 1)
    )
    others = tuple(noted_run for noted_run in record.runs if noted_run not in mine)
    return replace(record, runs=others, quiet=Quiet(first, run.tick, count, now)), []


def _of_quiet(quiet: Quiet) -> Skip:
    return Skip("NOTHING_NEW", "nothing new lay there", quiet.first, quiet.last, quiet.count)


def stood_already(
    record: ScheduleRecord, run: Run, job: str, job_state: RunSeen, now: float
) -> Noted:
    """The record if the log has the package of ``run`` or its ABORT: made by ``job``, which has
    ended as ``job_state``.
    """
    changed = _noted(record, run, lambda mine: replace(mine, job=job, trouble=None))
    if changed is None:
        return None
    events: list[dict[str, Any]] = []
    for mine in [noted_run for noted_run in changed.runs if noted_run not in record.runs]:
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
    """The record if ``run`` could not be submitted. ``final``: trying again would not help."""
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
    """``changed``, in which runs of ``record`` have trouble, once these are not submitted again by
    themselves.
    """
    events = [event]
    backfill, old = changed.backfill, record.backfill
    if backfill is not None and old is not None:
        policy = policy_of(backfill.policy)
        for mine in [
            backfill_run for backfill_run in backfill.runs if backfill_run not in old.runs
        ]:
            backfill = given_up(backfill, mine, why, policy, now, events)
        changed = replace(changed, backfill=backfill)
    troubled = [noted_run for noted_run in changed.runs if noted_run not in record.runs]
    retries = tuple(
        replace(retry, final=why, trouble=None) for retry in troubled if not retry.by_hand
    )
    runs = tuple(noted_run for noted_run in changed.runs if noted_run not in troubled)
    return replace(changed, runs=runs, retries=(*changed.retries, *retries)), events


def _noted(record: ScheduleRecord, run: Run, change: Callable[[Run], Run]) -> ScheduleRecord | None:
    """The record with ``change`` made to the run while it is to be submitted; None if there is
    none.

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
    """Return whether ``noted_run`` has the tick and try of ``run``, and its submit is not noted
    yet.
    """
    same = (noted_run.tick, noted_run.number, noted_run.by_hand) == (
        run.tick,
        run.number,
        run.by_hand,
    )
    return same and not noted_run.job and noted_run.final is None
