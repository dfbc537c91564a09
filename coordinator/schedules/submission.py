"""Notes on the record of a schedule how the try to submit a run ended (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Quiet, Run, ScheduleRecord, tick_text
from unstuck.coordinator.schedules.backfill import run_ended, submit_event
from unstuck.coordinator.schedules.decide_schedule import Skip, after_end, policy_of
from unstuck.coordinator.schedules.run_outcome import RunSeen


def submitted(
    record: ScheduleRecord, run: Run, job: str, author: str, now: float
) -> tuple[ScheduleRecord, dict[str, Any]] | None:
    """The record once ``run`` is submitted as ``job``, and the event; None if that is noted already.

    Args:
        author: of the job, which may have been the run of its tick before.
    """
    changed = _noted(record, run, lambda mine: replace(mine, job=job, trouble=None, tries=0, next_at=0.0))
    had = not any(one.was_begun_by(author) for one in record.going_on if _is_to_be(one, run))
    event = submit_event(run, job, now, had=had)
    if run.number > 1 and not had:
        event["text"] = f"try {run.number} of this tick"
    event |= {"by": run.by} if run.by else {}
    if record.quiet is not None:
        event |= {"code": "NOTHING_NEW", "text": f"before it, {_of_quiet(record.quiet).told}"}
    return None if changed is None else (replace(changed, quiet=None), event)


def nothing_new(record: ScheduleRecord, run: Run, now: float) -> tuple[ScheduleRecord, None] | None:
    """The record if nothing new lies there for ``run``. No event: there may be one in each second."""
    mine = [one for one in record.runs if _is_to_be(one, run)]
    if not mine:
        return None
    first, count = (run.tick, 1) if record.quiet is None else (record.quiet.first, record.quiet.count + 1)
    others = tuple(one for one in record.runs if one not in mine)
    return replace(record, runs=others, quiet=Quiet(first, run.tick, count, now)), None


def _of_quiet(quiet: Quiet) -> Skip:
    return Skip("NOTHING_NEW", "nothing new lay there", quiet.first, quiet.last, quiet.count)


def stood_already(
    record: ScheduleRecord, run: Run, job: str, seen: RunSeen, now: float
) -> tuple[ScheduleRecord, dict[str, Any]] | None:
    """The record if ``run`` had been submitted before and has ended as ``seen``, which the store forgot."""
    changed = _noted(record, run, lambda mine: replace(mine, job=job, trouble=None))
    if changed is None:
        return None
    event: dict[str, Any] | None = None
    for mine in set(changed.runs) - set(record.runs):
        changed, event = after_end(changed, mine, seen, now)
    if changed.backfill is not None and changed.backfill != record.backfill:
        backfill, events = run_ended(changed.backfill, run, seen, policy_of(changed.backfill.policy), now)
        changed, event = replace(changed, backfill=backfill), next(iter(events), event)
    return changed, event or {"kind": "RUN_STANDS", "at": now, "tick": tick_text(run.tick)}


def not_submitted(
    record: ScheduleRecord, run: Run, why: Reason, final: bool, now: float
) -> tuple[ScheduleRecord, dict[str, Any]] | None:
    """The record if ``run`` could not be submitted. ``final``: trying again would not help."""
    retry = policy_of(record.policy).retry

    def later(mine: Run) -> Run:
        wait = doubled(retry.backoff, retry.max_backoff, mine.tries)
        return replace(mine, trouble=why, tries=mine.tries + 1, next_at=now + wait)

    if (changed := _noted(record, run, later)) is None:
        return None
    if final:
        if changed.backfill is not None and changed.backfill != record.backfill:
            changed = replace(changed, backfill=replace(changed.backfill, halted=why))
        for mine in set(changed.runs) - set(record.runs):
            again = replace(mine, final=why, trouble=None)
            others = tuple(one for one in changed.runs if one is not mine)
            changed = replace(changed, runs=others, retries=(*record.retries, again))
    event = {"kind": "NOT_SUBMITTED", "at": now, "tick": tick_text(run.tick), "code": why.code, "text": why.text}
    return changed, event


def _noted(record: ScheduleRecord, run: Run, change: Callable[[Run], Run]) -> ScheduleRecord | None:
    """The record with ``change`` made to the run while it is to be submitted; None if there is none.

    A tick may have a run by the clock and one of a backfill: both are the same job.
    """

    def noted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        return tuple(change(one) if _is_to_be(one, run) else one for one in runs)

    backfill = record.backfill and replace(record.backfill, runs=noted(record.backfill.runs))
    changed = replace(record, runs=noted(record.runs), backfill=backfill)
    return None if changed == record else changed


def _is_to_be(one: Run, run: Run) -> bool:
    """Whether ``one`` is the run of the tick and try of ``run``, and nobody has noted its submit yet."""
    return not one.job and (one.tick, one.number) == (run.tick, run.number)
