"""Planted bugs of schedules. Each rule of the simulator of schedules must detect at least one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.planted.planted_bug import Patch, PlantedBugs
from tests.simulation.schedules import rules
from tests.simulation.schedules.actors import LooksAtHand
from tests.simulation.schedules.history import simulate_schedules
from tests.simulation.schedules.store import ModelSchedules
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Run,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.notices.rules import schedule_rules
from unstuck.coordinator.notices.rules.alerts import Alerts
from unstuck.coordinator.reconcile.schedule_notices import ScheduleNotices
from unstuck.coordinator.reconcile.schedule_sweep import ScheduleSweep
from unstuck.coordinator.schedules import (
    backfill,
    decide_schedule,
    next_step,
    run_end,
    schedule_commands,
    submission,
)
from unstuck.coordinator.schedules.backfill import ScheduleContext
from unstuck.coordinator.schedules.decide_schedule import ScheduleDecision
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.steps import Skip, Step, Submit, Wait
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.coordinator.store.answers import CommitAnswer

SCHEDULE_BUGS = PlantedBugs(simulate_schedules)

Event = dict[str, Any]
AfterStep = tuple[ScheduleRecord, Event | None]
Advanced = tuple[Backfill, list[Event]]
RunsSeen = Mapping[str, RunSeen]


@SCHEDULE_BUGS.plant(rules.TWICE, seed=1)
def cursor_does_not_move_past_a_run() -> list[Patch]:
    """A tick that starts a run is decided again after the run."""
    original = decide_schedule._after

    def after(record: ScheduleRecord, step: Step, now: float) -> AfterStep:
        changed, event = original(record, step, now)
        if isinstance(step, Submit):
            changed = replace(changed, cursor=record.cursor)
        return changed, event

    return [(decide_schedule, "_after", after)]


@SCHEDULE_BUGS.plant(rules.LOST_TICK, seed=1)
def skipped_tick_leaves_no_event() -> list[Patch]:
    """A tick is skipped, but the schedule records no event with the reason."""
    original = decide_schedule._after

    def after(record: ScheduleRecord, step: Step, now: float) -> AfterStep:
        changed, event = original(record, step, now)
        return changed, None if isinstance(step, Skip) else event

    return [(decide_schedule, "_after", after)]


@SCHEDULE_BUGS.plant(rules.SKIPPED_DONE, seed=30)
def published_ticks_are_skipped() -> list[Patch]:
    """A tick is skipped although the warehouse log has its package."""
    return [(decide_schedule, "_skipped_or_published", lambda _record, step, _log: step)]


@SCHEDULE_BUGS.plant(rules.OVERLAP, seed=1)
def tick_starts_beside_a_run() -> list[Patch]:
    """A tick starts a run while another run is active, although ``overlap`` forbids it."""
    original = decide_schedule.next_step

    def decide(record: ScheduleRecord, seen: RunsSeen, *arguments: Any) -> Step:
        step = original(record, seen, *arguments)
        if isinstance(step, Wait) and step.code == "RUN_GOES_ON":
            return original(replace(record, runs=()), seen, *arguments)
        return step

    return [(decide_schedule, "next_step", decide)]


@SCHEDULE_BUGS.plant(rules.PAUSED, seed=41)
def tick_starts_under_a_pause() -> list[Patch]:
    """A tick starts a run while the schedule is paused."""
    original = decide_schedule.next_step

    def decide(record: ScheduleRecord, *arguments: Any) -> Step:
        step = original(record, *arguments)
        if isinstance(step, Wait) and step.code == "PAUSED":
            return original(replace(record, intent=ScheduleIntent.RUN), *arguments)
        return step

    return [(decide_schedule, "next_step", decide)]


@SCHEDULE_BUGS.plant(rules.LATEST, seed=46)
def oldest_missed_tick_starts_a_run() -> list[Patch]:
    """Missed ticks start with the oldest one, whatever ``missed`` says."""

    def made_up(policy: ScheduleSpec, passed: tuple[float, float, int], *_: float) -> Step:
        return Submit(Run(tick=passed[0]))

    return [(next_step, "_made_up", made_up)]


@SCHEDULE_BUGS.plant(rules.STATUS, seed=62)
def halted_schedule_is_shown_as_paused() -> list[Patch]:
    """The status of a halted schedule is PAUSED."""
    original = decide_schedule.derive

    def derive(record: ScheduleRecord) -> ScheduleStatus:
        status = original(record)
        return ScheduleStatus.PAUSED if status is ScheduleStatus.HALTED else status

    return [(decide_schedule, "derive", derive)]


@SCHEDULE_BUGS.plant(rules.BACKOFF, seed=66)
def wait_before_a_retry_does_not_grow() -> list[Patch]:
    """A schedule waits equally long before each retry."""
    return [(run_end, "doubled", lambda wait, longest, times: min(wait, longest))]


@SCHEDULE_BUGS.plant(rules.FAILURES, seed=15)
def submit_resets_the_failures() -> list[Patch]:
    """The submit of a run resets the number of failures in a row."""
    original = submission._noted

    def noted(*arguments: Any) -> ScheduleRecord | None:
        changed = original(*arguments)
        return None if changed is None else replace(changed, failures=0)

    return [(submission, "_noted", noted)]


@SCHEDULE_BUGS.plant(rules.FROM_NOW, seed=5)
def resume_starts_the_ticks_of_the_pause() -> list[Patch]:
    """After a resume, the ticks of the pause start runs."""
    return [(schedule_commands, "_from_now", lambda record, now: record)]


@SCHEDULE_BUGS.plant(rules.LATE_TICK, seed=1)
def end_of_a_run_does_not_make_its_schedule_due() -> list[Patch]:
    """The end of a run does not change when its schedule is due."""
    return [(ModelSchedules, "due_now", lambda self, name: None)]


@SCHEDULE_BUGS.plant(rules.ORPHAN, seed=39)
def stop_drops_active_runs() -> list[Patch]:
    """A stop, or the cancel of a backfill, removes active runs from the record of the schedule."""

    def stored_runs(*_: Any) -> tuple[tuple[Run, ...], list[Event]]:
        return (), []

    return [(decide_schedule, "stored_runs", stored_runs), (backfill, "stored_runs", stored_runs)]


@SCHEDULE_BUGS.plant(rules.PARALLEL, seed=30)
def backfill_runs_one_too_many() -> list[Patch]:
    """A backfill has one run more at a time than ``--parallel`` allows."""
    original = decide_schedule.advance

    def advance(context: ScheduleContext, old: Backfill, *arguments: Any) -> Advanced:
        advanced, events = original(context, replace(old, parallel=old.parallel + 1), *arguments)
        return replace(advanced, parallel=old.parallel), events

    return [(decide_schedule, "advance", advance)]


@SCHEDULE_BUGS.plant(rules.ORDER)
def failed_tick_is_passed_over() -> list[Patch]:
    """A backfill in order continues after a tick that failed."""
    original = backfill.given_up

    def given_up(old: Backfill, *arguments: Any) -> Backfill:
        return replace(original(old, *arguments), halted=old.halted)

    return [(backfill, "given_up", given_up)]


@SCHEDULE_BUGS.plant(rules.ORDER, seed=65)
def clock_runs_beside_a_backfill_in_order() -> list[Patch]:
    """The clock starts runs although a backfill of ticks that build on each other is active."""
    original = decide_schedule.next_step

    def decide(record: ScheduleRecord, *arguments: Any) -> Step:
        step = original(record, *arguments)
        if isinstance(step, Wait) and record.backfill is not None and record.builds_on:
            return original(replace(record, backfill=None), *arguments)
        return step

    return [(decide_schedule, "next_step", decide)]


@SCHEDULE_BUGS.plant(rules.LOST_BACKFILL, seed=48)
def backfill_omits_every_second_tick() -> list[Patch]:
    """A backfill starts a run for every second tick of its range only."""
    original = backfill._following

    def following(old: Backfill, policy: ScheduleSpec) -> float | None:
        next_tick = original(old, policy)
        return None if next_tick is None else original(replace(old, next=next_tick), policy)

    return [(backfill, "_following", following)]


@SCHEDULE_BUGS.plant(rules.UNREAD, seed=7)
def arrived_files_are_not_detected() -> list[Patch]:
    """A schedule with ``only_if: arrived`` never detects a file."""
    return [(LooksAtHand, "look", lambda self, record, spec: Backlog(0.0, {}))]


@SCHEDULE_BUGS.plant(rules.IDLE_RUN, seed=7)
def tick_starts_a_run_without_new_files() -> list[Patch]:
    """A tick starts a run although ``only_if: arrived`` is set and no file has arrived."""
    return [(ScheduleSweep, "_waits_for_arrivals", lambda self, record, run, spec: False)]


@SCHEDULE_BUGS.plant(rules.UNTOLD, seed=0)
def commit_omits_its_notices() -> list[Patch]:
    """The commit of a schedule does not store the notices of its changes."""
    original = ScheduleSweep._commit

    def commit(
        self: ScheduleSweep,
        old: ScheduleRecord,
        decision: ScheduleDecision,
        due_seen: str,
        notices: Sequence[str],
    ) -> CommitAnswer:
        return original(self, old, decision, due_seen, ())

    return [(ScheduleSweep, "_commit", commit)]


@SCHEDULE_BUGS.plant(rules.TOLD_TWICE, seed=9)
def notified_problem_is_not_recorded() -> list[Patch]:
    """The record of a schedule does not store which problems were notified."""
    original = ScheduleNotices.completed

    def completed(
        self: ScheduleNotices,
        before: ScheduleRecord,
        after: ScheduleRecord,
        *arguments: Any,
        **more: Any,
    ) -> tuple[ScheduleRecord, tuple[str, ...], float | None]:
        changed, notices, due = original(self, before, after, *arguments, **more)
        return replace(changed, alerts=after.alerts), notices, due

    return [(ScheduleNotices, "completed", completed)]


@SCHEDULE_BUGS.plant(rules.UNWELL, seed=39)
def resume_is_notified_as_recovery() -> list[Patch]:
    """A resume ends the problems of a schedule in notices before a run has succeeded."""
    original = schedule_rules._ScheduleAlerts.failing

    def failing(self: schedule_rules._ScheduleAlerts) -> None:
        if not self._record.failures and self._record.halted is None:
            for key in self.book.open_keys():
                if schedule_rules._ends_with_success(key):
                    self.book.close(key)
        original(self)

    return [(schedule_rules._ScheduleAlerts, "failing", failing)]


@SCHEDULE_BUGS.plant(rules.LATE_NOTICE, seed=36)
def deadline_does_not_make_its_schedule_due() -> list[Patch]:
    """A schedule is not due when a deadline of its notices expires."""
    return [(Alerts, "look_by", lambda self, at: None)]
