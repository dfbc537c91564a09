"""Finds runs and retries that a commit removes from a schedule without a recorded result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unstuck.coordinator.model.schedule_record import Run, ScheduleIntent, ScheduleRecord
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.steps import policy_of

Event = Mapping[str, Any]


def lost_runs(
    before: ScheduleRecord, after: ScheduleRecord, events: Sequence[Event]
) -> Iterator[Run]:
    """Yield each run that was to be submitted or was going on, and is gone without a result.

    A run leaves the record when it has ended, when nothing had arrived for it, when it can never be
    submitted (the run of a tick waits as a retry then), or when a person stops the schedule.
    """
    if after.intent is ScheduleIntent.STOP:
        return
    for run in _missing((*before.runs, *before.requests), after):
        idle = after.quiet is not None and after.quiet.last == run.tick
        if not idle and not any(_is_result_of(run, event) for event in events):
            yield run


def lost_retries(
    before: ScheduleRecord, after: ScheduleRecord, events: Sequence[Event]
) -> Iterator[Run]:
    """Yield each run that has failed and is not tried again although its policy allows it."""
    if after.intent is ScheduleIntent.STOP:
        return
    skipped = {event["tick"] for event in events if event["kind"] == "USER_SKIP"}
    yield from (
        run for run in _missing(before.retries, after) if tick_text(run.tick) not in skipped
    )
    for run in _failed_with_tries_left(before, events):
        numbers = [pending.number for pending in _pending(after) if pending.tick == run.tick]
        if max(numbers, default=0) <= run.number:
            yield run


def _failed_with_tries_left(before: ScheduleRecord, events: Sequence[Event]) -> Iterator[Run]:
    """Yield the runs that ``events`` report as failed, and that are to be tried again."""
    policy, failures = policy_of(before.policy), before.failures
    for event in events:
        if event["kind"] == "RUN_FINISHED":
            failures = 0
        if event["kind"] != "RUN_FAILED":
            continue
        failures += 1
        next_tick_is_next_try = policy.cron is not None and failures > policy.retry.max
        run = next((run for run in before.runs if _is_of(run, event) and not run.by_hand), None)
        if run is not None and not next_tick_is_next_try:
            yield run


def _is_of(run: Run, event: Event) -> bool:
    if run.job:
        return run.job == event["job"]
    return not run.by_hand and tick_text(run.tick) == event.get("tick")


def _is_result_of(run: Run, event: Event) -> bool:
    kind = event["kind"].removeprefix("BACKFILL_")
    if run.by_hand:
        return kind == "NOT_SUBMITTED" or bool(kind.startswith("RUN_"))
    return bool(kind.startswith("RUN_")) and event.get("tick") == tick_text(run.tick)


def _missing(runs: tuple[Run, ...], after: ScheduleRecord) -> list[Run]:
    """Return those of ``runs`` that ``after`` does not have any more."""
    if not runs:
        return []
    pending = {(run.tick, run.number) for run in _pending(after)}
    return [run for run in runs if (run.tick, run.number) not in pending]


def _pending(record: ScheduleRecord) -> tuple[Run, ...]:
    return (*record.runs, *record.retries, *record.requests)
