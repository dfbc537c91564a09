"""Planted bugs that lose runs and retries of schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.planted.planted_bug import Patch, PlantedBugs
from tests.simulation.schedules import rules
from tests.simulation.schedules.history import simulate_schedules
from unstuck.coordinator.model.schedule_record import Run, ScheduleRecord
from unstuck.coordinator.reconcile import schedule_sweep
from unstuck.coordinator.requests import schedule_requests
from unstuck.coordinator.schedules import decide_schedule, schedule_commands, submission
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_commands import ScheduleCommanded

LOST_RUN_BUGS = PlantedBugs(simulate_schedules)

Event = dict[str, Any]
Noted = tuple[ScheduleRecord, list[Event]] | None
AfterEnd = tuple[ScheduleRecord, Event | None]


@LOST_RUN_BUGS.plant(rules.LOST_RETRY, seed=26)
def unfit_run_drops_retries() -> list[Patch]:
    """A run that can never be submitted drops the waiting retries of other ticks."""
    original = submission.not_submitted

    def not_submitted(record: ScheduleRecord, *arguments: Any) -> Noted:
        noted = original(record, *arguments)
        if noted is None or len(noted[0].retries) == len(record.retries):
            return noted
        changed, events = noted
        return replace(changed, retries=changed.retries[-1:]), events

    return [(schedule_sweep, "not_submitted", not_submitted)]


@LOST_RUN_BUGS.plant(rules.LOST_RETRY, seed=26)
def failure_drops_retries() -> list[Patch]:
    """A failed run drops the waiting retries of other ticks."""
    original = decide_schedule.after_end

    def after_end(record: ScheduleRecord, *arguments: Any) -> AfterEnd:
        changed, event = original(record, *arguments)
        if len(changed.retries) > len(record.retries):
            changed = replace(changed, retries=changed.retries[-1:])
        return changed, event

    return [(decide_schedule, "after_end", after_end), (submission, "after_end", after_end)]


@LOST_RUN_BUGS.plant(rules.LOST_RETRY, seed=13)
def second_retry_is_not_made() -> list[Patch]:
    """A failed run is tried again only once."""
    original = decide_schedule.after_end

    def after_end(record: ScheduleRecord, run: Run, seen: RunSeen | None, now: float) -> AfterEnd:
        changed, event = original(record, run, seen, now)
        return (changed if run.number == 1 else replace(changed, retries=record.retries)), event

    return [(decide_schedule, "after_end", after_end), (submission, "after_end", after_end)]


@LOST_RUN_BUGS.plant(rules.LOST_RETRY, seed=268)
def command_hurries_one_retry() -> list[Patch]:
    """A command tries one failed run at once and drops the others."""
    original = schedule_commands.command

    def command(*arguments: Any) -> ScheduleCommanded:
        result = original(*arguments)
        return replace(result, record=replace(result.record, retries=result.record.retries[:1]))

    return [(schedule_requests, "command", command)]


@LOST_RUN_BUGS.plant(rules.LOST_RUN, seed=3)
def trouble_drops_the_run() -> list[Patch]:
    """A run that cannot be submitted at once is given up."""
    original = submission.not_submitted

    def not_submitted(*arguments: Any) -> Noted:
        noted = original(*arguments)
        if noted is None:
            return None
        changed, events = noted
        return replace(changed, runs=tuple(run for run in changed.runs if not run.trouble)), events

    return [(schedule_sweep, "not_submitted", not_submitted)]


@LOST_RUN_BUGS.plant(rules.LOST_RUN, seed=217)
def idle_tick_drops_other_runs() -> list[Patch]:
    """Nothing new for one tick cancels the runs of all ticks."""
    original = submission.nothing_new

    def nothing_new(*arguments: Any) -> Noted:
        noted = original(*arguments)
        if noted is None:
            return None
        changed, events = noted
        return replace(changed, runs=tuple(run for run in changed.runs if run.job)), events

    return [(schedule_sweep, "nothing_new", nothing_new)]


@LOST_RUN_BUGS.plant(rules.LOST_RUN, seed=64)
def changed_spec_drops_the_requested_run() -> list[Patch]:
    """A changed spec drops the run that a person asked for."""
    original = schedule_commands.set_again

    def set_again(*arguments: Any) -> ScheduleCommanded:
        result = original(*arguments)
        return replace(result, record=replace(result.record, requests=()))

    return [(schedule_requests, "set_again", set_again)]


@LOST_RUN_BUGS.plant(rules.LOST_TICK, seed=9)
def resume_leaves_no_event() -> list[Patch]:
    """A resume does not record the ticks that it skips."""
    return [(schedule_commands, "passed", lambda *_: None)]
