"""Applies the end of a run to the record of its schedule. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Run, RunFailure, RunSuccess, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import utc
from unstuck.coordinator.schedules.backfill import ended_event
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.trigger import next_tick
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec


def after_end(
    record: ScheduleRecord, run: Run, job_state: RunSeen | None, now: float
) -> tuple[ScheduleRecord, dict[str, Any] | None]:
    """Return the record after the end of ``run``, and the event."""
    others = tuple(other for other in record.runs if other is not run)
    if job_state is None:
        # The store was rolled back. Submitting the run again makes the same job, which finds its
        # package if there is one.
        return replace(record, runs=(*others, replace(run, job=""))), None
    connected = record.cursor < record.busy_from or run.at <= record.busy_until
    record = replace(
        record,
        runs=others,
        busy_from=record.busy_from if connected else run.at,
        busy_until=max(record.busy_until, job_state.ended_at),
    )
    if job_state.status is Status.FINISHED:
        record = _finished(record, run, job_state)
    elif job_state.status is Status.FAILED and not run.by_hand:  # a run by hand has no tick
        record = _failed(record, run, job_state, now)
    return record, ended_event("", run, job_state, now)


def _finished(record: ScheduleRecord, run: Run, job_state: RunSeen) -> ScheduleRecord:
    more_at = 0.0
    if job_state.left:
        more_at = _beside_ticks(policy_of(record.policy), job_state.ended_at)
    return replace(
        _after_take_over(record, job_state),
        last_success=replace(success_of(run, job_state), left=job_state.left),
        failures=0,
        first_error=None,
        last_error=None,
        more_at=more_at,
    )


def _failed(record: ScheduleRecord, run: Run, job_state: RunSeen, now: float) -> ScheduleRecord:
    policy, reason = policy_of(record.policy), job_state.reason or Reason("FAILED", "it failed")
    failure = RunFailure(run.job, run.tick, job_state.ended_at, reason.code, reason.text)
    failures = record.failures + 1
    record = replace(
        record, failures=failures, first_error=record.first_error or failure, last_error=failure
    )
    final = None
    if job_state.final:
        final = Reason(reason.code, f"no further try can mend it: {reason.text}")
    elif failures > policy.retry.max:
        if policy.cron is not None and not record.builds_on:
            return record  # its next tick is the next try
        text = f"{failures} runs failed in a row; the last: {reason.text}"
        final = Reason("RETRIES_EXHAUSTED", text)
    wait = doubled(policy.retry.backoff, policy.retry.max_backoff, failures - 1)
    again = Run(
        run.tick,
        run.number + 1,
        by=run.by,
        retry_of=run.job,
        after=job_state.ended_at,
        next_at=now + wait,
        final=final,
    )
    return replace(record, retries=(*record.retries, again))


def backfill_succeeded(record: ScheduleRecord, run: Run, job_state: RunSeen) -> ScheduleRecord:
    """Return ``record`` after a run of its backfill FINISHED."""
    return succeeded(_after_take_over(record, job_state), success_of(run, job_state))


def succeeded(record: ScheduleRecord, run: RunSuccess) -> ScheduleRecord:
    """Return ``record`` with the success of ``run``, unless it has the success of a newer tick."""
    last = record.last_success
    if last is not None and last.tick >= run.tick:
        return record
    return replace(record, last_success=run)


def success_of(run: Run, job_state: RunSeen) -> RunSuccess:
    return RunSuccess(run.job, run.tick, job_state.ended_at, job_state.version, job_state.rows)


def _after_take_over(record: ScheduleRecord, job_state: RunSeen) -> ScheduleRecord:
    """Return ``record`` after a run FINISHED: a job that has published owns its datasets."""
    return replace(record, take_over=False) if record.take_over and job_state.version else record


def _beside_ticks(policy: ScheduleSpec, at: float) -> float:
    """Return ``at`` in whole milliseconds, as in keys, moved past a tick with the same key."""
    at = round(at, 3)
    tick = next_tick(policy, utc(at - 0.001))
    return at if tick is None or tick.timestamp() > at else round(at + 0.001, 3)
