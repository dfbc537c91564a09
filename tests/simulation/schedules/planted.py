"""Bugs of schedules that are put in on purpose, each a line of the product or of the model. Each must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from tests.simulation.planted.planting import Patches, edited
from tests.simulation.schedules import rules
from tests.simulation.schedules.actors import SubmitterAtHand
from tests.simulation.schedules.history import simulate_schedules
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.stage.history import HistoryResult
from unstuck.coordinator.model.schedule_record import Run, derive
from unstuck.coordinator.notices.rules import schedule_rules
from unstuck.coordinator.reconcile import schedule_sweep
from unstuck.coordinator.schedules import backfill, submission
from unstuck.coordinator.schedules import decide_schedule as decide
from unstuck.coordinator.schedules import schedule_commands as commands


@dataclass(frozen=True, slots=True)
class PlantedInSchedules:
    """A bug, the promise that it breaks, and from which seed on it is looked for."""

    name: str
    breaks: str
    start: int
    patches: Callable[[], Patches]
    within: int = 1000

    def search(self) -> HistoryResult | None:
        """The first history in which it breaks its promise."""
        with self.planted():
            for seed in range(self.start, self.start + self.within):
                history = simulate_schedules(seed)
                if history.promise == self.breaks:
                    return history
        return None

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(patch.object(target, name, value))
            yield


def _bug(name: str, breaks: str, start: int, function: object, old: str, new: str) -> PlantedInSchedules:
    return PlantedInSchedules(name, breaks, start, partial(edited, function, old, new))


IN_SCHEDULES = (
    _bug(
        "a run for what was left counts as the run of a tick",
        rules.LOST_TICK,
        60,
        decide._after,
        "not run.by and not more",
        "not run.by",
    ),
    _bug(
        "a run for what was left begins under a pause",
        rules.PAUSED,
        64,
        decide.decide_schedule,
        "    if record.intent is ScheduleIntent.PAUSE:",
        "    if record.more_at and not record.runs:\n        return Submit(Run(tick=record.more_at), more=True)\n"
        "    if record.intent is ScheduleIntent.PAUSE:",
    ),
    _bug(
        "a failure ends the pause of a person",
        rules.PAUSED,
        97,
        decide._failed,
        "record = replace(record, failures=failures,",
        "record = replace(record, intent=ScheduleIntent.RUN, failures=failures,",
    ),
    _bug(
        "a tick begins under a pause",
        rules.PAUSED,
        7,
        decide.decide_schedule,
        "if record.intent is ScheduleIntent.PAUSE:",
        "if record.intent is ScheduleIntent.PAUSE and record.failures:",
    ),
    _bug(
        "a commit does not ask whether another came before",
        rules.PAUSED,
        64,
        ModelSchedules._conflicts,
        '(stored.commit if stored is not None else "") != change.expect',
        "stored is None and bool(change.expect)",
    ),
    _bug(
        "each try sets the count of failures back, so the backoff never grows",
        rules.FAILURES,
        4,
        submission._noted,
        "changed = replace(record, ",
        "changed = replace(record, failures=0, ",
    ),
    _bug(
        "the count of failures never grows",
        rules.BACKOFF,
        105,
        decide._failed,
        "record.failures + 1",
        "max(record.failures, 1)",
    ),
    _bug(
        "a tick begins while the run before goes on",
        rules.OVERLAP,
        1,
        decide.decide_schedule,
        'free = not record.runs or policy.overlap == "allow"',
        'free = not record.runs or policy.overlap != "wait"',
    ),
    _bug(
        "a retry begins beside a run",
        rules.OVERLAP,
        320,
        decide.decide_schedule,
        "if free and (come := ",
        "if (come := ",
    ),
    _bug(
        "a skipped tick is not told",
        rules.LOST_TICK,
        1,
        decide._after,
        "return replace(record, cursor=max(record.cursor, step.last)), event",
        "return replace(record, cursor=max(record.cursor, step.last)), None",
    ),
    _bug(
        "of missed ticks the last one alone is run, whatever the policy says",
        rules.LOST_TICK,
        21,
        decide._made_up,
        "if begin > first and ",
        "if False and ",
    ),
    _bug(
        "the cursor stays where it was",
        rules.TWICE,
        0,
        decide._after,
        "max(record.cursor, run.tick) if by_tick",
        "record.cursor if by_tick",
    ),
    _bug(
        "after a resume all ticks of the pause come at once",
        rules.FROM_NOW,
        1,
        commands.command,
        "asked = result.record",
        "asked = replace(result.record, cursor=record.cursor)",
    ),
    _bug(
        "a changed trigger fires for the past",
        rules.FROM_NOW,
        1,
        commands.set_again,
        "replace(_from_now(changed, now), seen=new.seen)",
        "replace(changed, cursor=old.set_at, seen=new.seen)",
    ),
    _bug(
        "after a clock that was ahead no tick comes for a day, whatever a person commands",
        rules.FROM_NOW,
        23,
        commands._is_ahead,
        "record.cursor > now + CLOCKS_DIFFER",
        "False",
    ),
    _bug(
        "of missed ticks the oldest is run",
        rules.LATEST,
        46,
        decide._made_up,
        "begin = last",
        "begin = first",
    ),
    _bug(
        "the end of a run does not make its schedule due",
        rules.LATE_TICK,
        13,
        ModelSchedules.end_job,
        "self.due_now(job.schedule)",
        "self.due_now(job.schedule if version else '')",
    ),
    _bug(
        "a schedule that a dead coordinator took is never due again",
        rules.LATE_TICK,
        1,
        ModelSchedules.take_due,
        "round(now + term, 6)",
        "round(now + 1000 * term, 6)",
    ),
    _bug(
        "a schedule that becomes due while it is decided is forgotten",
        rules.LATE_TICK,
        913,
        ModelSchedules._set_due,
        "if seen and self.now",
        "if True or self.now",
    ),
    _bug(
        "nobody looks whether a run was submitted",
        rules.LATE_TICK,
        169,
        decide._look_at_run,
        "else max(run.next_at, now + term)",
        "else now + LOOK",
    ),
    _bug(
        "a run that a dead coordinator was submitting is left to it for longer than the term of a lock",
        rules.LATE_TICK,
        169,
        decide._look_at_run,
        "now + term",
        "now + 4 * term",
    ),
    _bug(
        "a retry waits for the next tick where runs may overlap",
        rules.LATE_TICK,
        180,
        decide._look_at,
        "for run in record.retries if run.next_at > now",
        "for run in ()",
    ),
    _bug(
        "nobody looks whether a job that the store forgot has published",
        rules.TWICE,
        651,
        SubmitterAtHand.store_job,
        "if found is not None:",
        "if False:",
    ),
    _bug(
        "a tick whose retry has published is run again when its jobs are forgotten",
        rules.TWICE,
        129,
        Run.stands_as,
        "range(MAX_TRIES)",
        "range(1)",
    ),
    _bug(
        "a schedule looks for files that have arrived, and never finds one",
        rules.UNREAD,
        7,
        schedule_sweep.Schedules._waits_for_arrivals,
        "return not any(",
        "return True or any(",
    ),
    _bug(
        "a tick makes a run whatever has arrived",
        rules.IDLE_RUN,
        7,
        schedule_sweep.Schedules._waits_for_arrivals,
        "run.by or run.number > 1",
        "True",
    ),
    _bug(
        "HALTED is shown as PAUSED",
        rules.STATUS,
        0,
        derive,
        "return ScheduleStatus.HALTED",
        "return ScheduleStatus.PAUSED",
    ),
    _bug(
        "a stop lets go of a run whose submit nobody has noted",
        rules.ORPHAN,
        240,
        backfill.stored_runs,
        "run.job in seen or run.job not in unnoted.values()",
        "run.job not in unnoted.values()",
    ),
    _bug(
        "a backfill has one run more than was asked for",
        rules.PARALLEL,
        3,
        backfill.advance,
        "len(backfill.runs) < backfill.parallel",
        "len(backfill.runs) <= backfill.parallel",
    ),
    _bug(
        "a backfill goes on while its schedule is paused",
        rules.PAUSED,
        8,
        backfill.advance,
        "while not held and",
        "while",
    ),
    _bug(
        "a backfill that was set to another trigger loses ticks",
        rules.LOST_BACKFILL,
        70,
        decide.decide,
        "policy_of(record.backfill.policy)",
        "policy_of(record.policy)",
    ),
    _bug(
        "a backfill that waits after a failure is never looked at",
        rules.LATE_TICK,
        431,
        decide._look_at_backfill,
        "backfill.next_at if waits else now + IDLE_LOOK",
        "now + IDLE_LOOK",
    ),
    _bug(
        "a failure is told again for each retry",
        rules.TOLD_TWICE,
        4,
        schedule_rules._Telling._open,
        "if not last.over:",
        "if False:",
    ),
    _bug(
        "what is told of a decision is not committed with it",
        rules.UNTOLD,
        0,
        schedule_sweep.Schedules._commit,
        '"notices": notices',
        '"notices": ()',
    ),
    _bug(
        "what was told is not on record",
        rules.TOLD_TWICE,
        0,
        schedule_sweep.Schedules.decide,
        "decision = replace(decision, record=told, due=due)",
        "decision = replace(decision, due=due)",
    ),
    _bug(
        "a halt is told of once only",
        rules.UNTOLD,
        13,
        schedule_rules._Telling.failing,
        '(before.halted is None or not self._stands("halted"))',
        'not self._stands("halted")',
    ),
    _bug(
        "a resume is told as a success",
        rules.UNWELL,
        21,
        schedule_rules._Telling.failing,
        'if self._runs["RUN_FINISHED"] and not',
        "if not",
    ),
    _bug(
        "nobody looks when a deadline comes",
        rules.LATE_NOTICE,
        12,
        schedule_rules._Telling._late,
        "self._look_by(found.next_at)",
        "pass",
    ),
    _bug(
        "a schedule that is paused is not late",
        rules.LATE_NOTICE,
        16,
        schedule_rules._Telling._late,
        "if found.next_at:",
        "if record.status is ScheduleStatus.PAUSED:\n        return\n    if found.next_at:",
    ),
)
