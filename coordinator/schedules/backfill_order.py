"""Checks a backfill whose ticks build on each other against the earlier and later ticks. Pure."""

from __future__ import annotations

from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text
from unstuck.coordinator.schedules.backfill import Ticks, Wanted, needs_run
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec

_RAN = (TickOutcome.DONE, TickOutcome.RUNNING)


def order_problem(
    record: ScheduleRecord, requested: Wanted, policy: ScheduleSpec, ticks: Ticks, now: float
) -> str:
    """Return why ticks that build on each other cannot be run as requested; empty if they can.

    Args:
        ticks: those from the first of the range on, also beyond its end.
    """
    problem = _form_problem(record, requested)
    if not problem and not requested.from_here:
        problem = _neighbor_problem(record.name, requested, policy, ticks, now)
    return problem and f"each of its runs builds on the one before ({record.builds_on}){problem}"


def _form_problem(record: ScheduleRecord, requested: Wanted) -> str:
    if requested.parallel > 1:
        return ", so its ticks run one at a time: leave --parallel out"
    if requested.backwards:
        return ", so its ticks run in their order: leave --backwards out"
    if record.runs or record.retries or record.requests:
        skip = f"leave its tick out with `unstuck schedule skip {record.name} TICK`"
        ended = "give the backfill when it has ended"
        return f", and a run goes on, or is tried again: {ended}, or {skip}"
    return ""


def _neighbor_problem(
    schedule: str, requested: Wanted, policy: ScheduleSpec, ticks: Ticks, now: float
) -> str:
    """Return a problem with a tick before or after those that are to be run."""
    first_at = _first_to_run(requested, policy, ticks, now)
    if first_at is None:
        return ""
    kept = [tick for tick in ticks.values() if tick.outcome is not TickOutcome.SKIPPED]
    before = [tick for tick in kept if tick.at < first_at]
    if before and before[-1].outcome is TickOutcome.FAILED:
        failed = tick_text(before[-1].at)
        skip = f"leave it out with `unstuck schedule skip {schedule} {failed}`"
        return f", and the tick {failed} before it failed: begin with it, or {skip}"
    return _later_problem(schedule, ticks, first_at)


def _later_problem(schedule: str, ticks: Ticks, first_at: float) -> str:
    """Return a problem with a run of the tick ``first_at`` or a later one."""
    ran = [at for at, tick in ticks.items() if tick.outcome in _RAN]
    last_at = max(ran, default=first_at - 1)
    if last_at < first_at:
        return ""
    first = tick_text(first_at)
    again = f"`unstuck schedule backfill {schedule} --from {first} --from-here`"
    return (
        f", and {tick_text(last_at)} has had its run, so no run of {first} can come before it; "
        f"{again} runs that tick and all later ones again, in order"
    )


def _first_to_run(
    requested: Wanted, policy: ScheduleSpec, ticks: Ticks, now: float
) -> float | None:
    for instant_of_tick in requested.ticks(policy, now):
        at = instant_of_tick.timestamp()
        tick = ticks.get(at, Tick(at))
        runs = tick.outcome is TickOutcome.RUNNING
        if not runs and needs_run(tick, requested.redo, in_order=True):
            return at
    return None
