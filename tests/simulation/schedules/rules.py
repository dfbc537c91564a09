"""What must hold of schedules after every write and at every moment, whatever is lost, killed or
set back.

The rules know ticks by the trigger alone. They read records as people see them, and the warehouse
log.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.simulation.actors.warehouse import Depot
from tests.simulation.rules.broken import FORGOTTEN, ONE, SHOWN, WAIT, WORD, Broken
from tests.simulation.schedules.actors import Landing
from tests.simulation.schedules.lost_runs import lost_retries, lost_runs
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.schedules.told import LATE_NOTICE, TOLD_TWICE, UNTOLD, UNWELL, ToldRules
from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.schedule_record import (
    SCHEDULE_MOVES,
    Run,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import TickOutcome, tick_of_key
from unstuck.coordinator.reconcile.schedule_sweep import REPAIR_EVERY
from unstuck.coordinator.schedules.next_step import LATE
from unstuck.coordinator.schedules.steps import CLOCKS_DIFFER, policy_of
from unstuck.coordinator.schedules.trigger import next_tick, start_delay, ticks
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.coordinator.store.schedule_store import ScheduleChange

TWICE = f"{ONE}: a tick is published once"
OVERLAP = f"{ONE}: no two runs where overlap forbids it"
PARALLEL = f"{ONE}: no more runs of a backfill than were asked for"
LOST_TICK = f"{FORGOTTEN}: a tick is run, or skipped with its reason"
LOST_RUN = f"{FORGOTTEN}: a run that is to begin or goes on has a result on record in the end"
LOST_RETRY = f"{FORGOTTEN}: a failed run is tried again, whatever other runs do"
ORPHAN = f"{FORGOTTEN}: a job that is stored is a run that its schedule knows"
LATE_TICK = f"{FORGOTTEN}: what a schedule waits for happens within a sweep and a term"
UNREAD = f"{FORGOTTEN}: what has arrived is read by a run"
LOST_BACKFILL = f"{FORGOTTEN}: a backfill ends when each of its ticks had a run"
ORDER = f"{ONE}: ticks that build on each other run in order, and none is passed over"
PAUSED = f"{WORD}: the pause of a person is ended by a person"
FROM_NOW = f"{WORD}: a resume or another trigger counts from now"
LATEST = f"{WORD}: of missed ticks those are run that the policy says"
IDLE_RUN = f"{WORD}: no tick makes a run while nothing has arrived"
FAILURES = f"{SHOWN}: failures are set back by a success or a resume"
SKIPPED_DONE = f"{SHOWN}: a tick that is published is not reported as skipped"
STATUS = f"{SHOWN}: the status of a schedule follows from its record"
BACKOFF = f"{WAIT}: the wait before a retry grows with each failure"
RULES = (
    *(TWICE, OVERLAP, PARALLEL, LOST_TICK, LOST_RUN, LOST_RETRY, ORPHAN, LATE_TICK, LOST_BACKFILL),
    ORDER,
    *(PAUSED, FROM_NOW, LATEST, FAILURES, SKIPPED_DONE, STATUS, BACKOFF, UNREAD, IDLE_RUN),
    *(UNTOLD, TOLD_TWICE, UNWELL, LATE_NOTICE),
)
# Seconds within which each schedule that reads a stream has a tick, with its jitter.
TICK_WITHIN = 25.0
_ARRIVED = "a run for what arrived"
_PROMISES = {"the notice": LATE_NOTICE, _ARRIVED: UNREAD}
_SKIPPED = re.compile(r"skipped, (\S+?Z)(?: to (\S+?Z))?:")


class Rules:
    """Told of every write; raises Broken."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelSchedules,
        depot: Depot,
        landing: Landing,
        bound: float,
    ) -> None:
        """``bound``: seconds within which happens what a schedule waits for, once all trouble is
        over.
        """
        self._landing = landing
        self._stage, self._trouble, self._core, self._depot, self._bound = (
            stage,
            trouble,
            core,
            depot,
            bound,
        )
        self._since: dict[tuple[str, str], float] = {}  # what is waited for → since when
        self._jobs: dict[str, JobRecord] = {}  # all that ever were
        self._seen = 0  # of the log
        self._published: dict[str, list[str]] = defaultdict(
            list
        )  # tick → the jobs that published for it
        self._done: dict[str, dict[float, float]] = defaultdict(
            dict
        )  # schedule → tick → when it was published
        self._rolled_back = 0.0
        self._told = ToldRules(core, self.broken)
        self.commits = self.commands = 0

    def broken(self, promise: str, text: str) -> None:
        raise Broken(promise, text)

    # ---- every write
    # -------------------------------------------------------------------------------------------------

    def rolled_back(self) -> None:
        self._since.clear()
        self._rolled_back = self._stage.now
        stored = self._core.schedules.items()
        if any(not schedule.over and name not in self._core.due for name, schedule in stored):
            self._trouble.disturb(
                self._stage.now + REPAIR_EVERY
            )  # the due index has lost these once more

    def submitted(self, job: JobRecord) -> None:
        self._jobs[job.id] = job
        record = self._core.load(job.schedule)
        stopped = record is None or record.intent is ScheduleIntent.STOP
        if (
            record is None
            or stopped
            or job.key not in [run.key(record.name) for run in record.going_on]
        ):
            self.broken(ORPHAN, f"{job.key} is stored, and {record} does not want it")
        self._in_order(record, job)
        asked = any(run.by and run.key(record.name) == job.key for run in record.runs)
        if record.intent is ScheduleIntent.PAUSE and not asked:
            self.broken(PAUSED, f"{job.key} begins, and {record.name} is paused")
        policy = policy_of(record.policy)
        idle = self._landing.idle_for(record.name, self._stage.now)
        own = [
            run
            for run in record.runs
            if run.key(record.name) == job.key and not run.by and run.number == 1
        ]
        # A look is at most that old; and what was decided before the policy was set, another one
        # decided.
        if policy.only_if and idle > self._bound and any(run.at > record.set_at for run in own):
            self.broken(IDLE_RUN, f"{job.key} begins, and nothing has arrived for {idle:.0f}s")
        if self._rolled_back:
            return
        others = [run for run in record.runs if run.job and run.job != job.id]
        going_on = [run.job for run in others if not self._core.jobs.get(run.job, job).terminal]
        # Of what was decided before the policy was set, another one decided.
        mine = any(
            run.key(record.name) == job.key and run.at > record.set_at for run in record.runs
        )
        if mine and going_on and policy.overlap != "allow":
            self.broken(
                OVERLAP, f"{job.key} begins while {going_on} go on, and overlap is {policy.overlap}"
            )

    def _in_order(self, record: ScheduleRecord, job: JobRecord) -> None:
        """A run of ticks that build on each other begins when all ticks before it in the backfill
        are done.
        """
        fill = record.backfill
        if fill is None or not fill.in_order or fill.over:
            return
        others = [
            one.key
            for one in self._core.jobs.values()
            if one.schedule == record.name and not one.terminal
        ]
        if others != [job.key]:
            self.broken(ORDER, f"{job.key} begins beside {others}")
        tick = next((run.tick for run in fill.active if run.key(record.name) == job.key), None)
        if tick is None:
            self.broken(ORDER, f"{job.key} begins before the backfill has ended: {fill.progress}")
            return
        known = self._core.ticks(record.name, fill.first, tick)
        for at in _between(policy_of(fill.policy), fill.first - 0.001, tick - 0.001):
            if at not in known or known[at].outcome not in (TickOutcome.DONE, TickOutcome.SKIPPED):
                self.broken(
                    ORDER, f"{job.key} begins, and the tick {at:.1f} before it is {known.get(at)}"
                )

    def committed(
        self, before: ScheduleRecord | None, after: ScheduleRecord, change: ScheduleChange
    ) -> None:
        self.commits += 1
        self.commands += change.commanded
        if after.status is not (expected := _status(after)):
            self.broken(STATUS, f"{after.name} is shown {after.status}; its record says {expected}")
        if before is None:
            return
        kinds = {str(event["kind"]) for event in change.events}
        if (
            before.status is not after.status
            and (before.status, after.status) not in SCHEDULE_MOVES
        ):
            self.broken(STATUS, f"{after.name} goes from {before.status} to {after.status}")
        if before.intent is not after.intent and not change.commanded:
            self.broken(
                PAUSED,
                (
                    f"{after.name}: nobody asked, and its intent goes from {before.intent} to "
                    f"{after.intent}"
                ),
            )
        resumed = change.commanded and "USER_RESUME" in kinds
        if after.failures < before.failures and not resumed and "RUN_FINISHED" not in kinds:
            self.broken(
                FAILURES,
                f"{after.name}: from {before.failures} to {after.failures} by {sorted(kinds)}",
            )
        if change.commanded:
            at = min(float(event["at"]) for event in change.events)
            self._commanded(before, after, change, resumed)
            if (resumed or "USER_RUN" in kinds) and after.cursor > at + CLOCKS_DIFFER + 0.01:
                self.broken(
                    FROM_NOW,
                    f"{after.name}: its next tick is after {after.cursor:.1f}, and it is {at:.1f}",
                )
        else:
            self._decided(before, after, change)
        self._kept(before, after, change)
        self._not_done(after, change)
        self._backfilled(before, after, change)
        self._told.committed(before, after, change)
        left = {run.key(after.name) for run in before.going_on} - {
            run.key(after.name) for run in after.going_on
        }
        for job in self._core.jobs.values():
            if job.schedule == after.name and job.key in left and not job.terminal:
                self.broken(
                    ORPHAN, f"{job.key} goes on as {job.id}, and {after.name} has let go of it"
                )

    def _commanded(
        self, before: ScheduleRecord, after: ScheduleRecord, change: ScheduleChange, resumed: bool
    ) -> None:
        at = min(float(event["at"]) for event in change.events)
        old, new = policy_of(before.policy), policy_of(after.policy)
        other = (old.cron, old.zone, old.every, old.after) != (
            new.cron,
            new.zone,
            new.every,
            new.after,
        )
        if (resumed or other) and after.cursor < at - 0.01:
            self.broken(
                FROM_NOW, f"{after.name} counts from {after.cursor:.1f}, and it was {at:.1f}"
            )
        unskipped = set() if other else set(_unskipped(_passed(new, before, after), change))
        if unskipped := unskipped - self._done_ticks(after.name):
            self.broken(
                LOST_TICK,
                f"{after.name}: a command passes over the ticks {unskipped}; {change.events}",
            )

    def _kept(self, before: ScheduleRecord, after: ScheduleRecord, change: ScheduleChange) -> None:
        events = [*change.events]
        for run in lost_runs(before, after, events):
            self.broken(LOST_RUN, f"{after.name}: {run.key('')} is gone by {events}")
        for run in lost_retries(before, after, events):
            self.broken(
                LOST_RETRY, f"{after.name}: {run.key('')} is not tried again after {events}"
            )

    def _done_ticks(self, name: str) -> set[float]:
        """Return the ticks of a schedule that are on record as done."""
        known = self._core.ticks(name, 0.0)
        return {at for at, tick in known.items() if tick.outcome is TickOutcome.DONE}

    def _not_done(self, after: ScheduleRecord, change: ScheduleChange) -> None:
        """Check that no tick is reported as skipped that was published a while ago."""
        spans = _spans(event for event in change.events if event["kind"] == "SKIPPED")
        policy = policy_of(after.policy)
        for tick, published_at in self._done[after.name].items():
            skipped = any(first <= tick <= last for first, last in spans)
            known = self._stage.now - published_at > self._bound
            if skipped and known and tick in _between(policy, tick - 0.001, tick):
                self.broken(
                    SKIPPED_DONE, f"{after.name}: {_at(tick)} is published; {change.events}"
                )

    def _decided(
        self, before: ScheduleRecord, after: ScheduleRecord, change: ScheduleChange
    ) -> None:
        policy, now = policy_of(after.policy), self._core.now
        new = [run for run in after.runs if not any(_same(run, one) for one in before.runs)]
        first_tries = [run for run in new if run.number == 1 and not run.by]
        # A run that could not be submitted is tried again under the same number.
        clocked = [run for run in first_tries if not any(_same(run, one) for one in before.retries)]
        if clocked and after.intent is not ScheduleIntent.RUN:
            self.broken(PAUSED, f"{after.name} is {after.status}, and {clocked} begin")
        if len(after.runs) > 1 and policy.overlap != "allow" and new:
            self.broken(
                OVERLAP, f"{after.name} has the runs {after.runs}, and overlap is {policy.overlap}"
            )
        passed = _passed(policy, before, after)
        ends = [job.ended_at for job in self._core.jobs.values() if job.left]
        more = {
            before.more_at,
            *(round(end + shift, 3) for end in ends for shift in (0, 0.001)),
        } - {*passed}
        begun = {run.tick for run in clocked} - more
        stands = {
            run.tick for run in before.runs
        }  # by a clock that was ahead, a run of it was made before
        if lost := set(_unskipped(passed, change)) - begun - stands - self._done_ticks(after.name):
            self.broken(
                LOST_TICK, f"{after.name}: nobody is told of the ticks {lost}; {change.events}"
            )
        of_trigger = policy.after is not None or begun <= set(passed)
        if after.cursor < before.cursor or not of_trigger:
            self.broken(
                TWICE,
                (
                    f"{after.name}: {begun} begin at {before.cursor:.1f}, which goes to "
                    f"{after.cursor:.1f}"
                ),
            )
        delay = start_delay(policy, after.name).total_seconds()
        judged_at = max((run.at for run in clocked if run.tick in begun), default=now)
        newest = (
            max(_between(policy, before.cursor, judged_at - delay), default=0.0) if begun else 0.0
        )
        if policy.missed != "all" and begun and max(begun) < newest and policy.overlap == "allow":
            self.broken(
                LATEST, f"{after.name} runs {begun} at {now:.1f}, and missed is {policy.missed}"
            )
        if policy.missed == "none" and begun and judged_at - min(begun) - delay > LATE + 1:
            self.broken(
                LATEST, f"{after.name} runs {begun} at {now:.1f}, and missed is {policy.missed}"
            )
        succeeded = any(
            event["kind"] == "RUN_FINISHED" for event in change.events
        )  # before or after the failure
        for retry in after.retries:
            wait = min(
                policy.retry.max_backoff,
                policy.retry.backoff * 2.0 ** (0 if succeeded else before.failures),
            )
            is_new = not any(_same(retry, one) for one in before.retries) and not retry.final
            failed = self._core.jobs.get(retry.retry_of)
            if (
                is_new
                and failed is not None
                and retry.next_at < failed.submitted_at + wait
                and not self._core.jumped
            ):
                self.broken(
                    BACKOFF,
                    (
                        f"{after.name} has failed {after.failures} times, and waits until "
                        f"{retry.next_at}"
                    ),
                )

    def _backfilled(
        self, before: ScheduleRecord, after: ScheduleRecord, change: ScheduleChange
    ) -> None:
        old, new = before.backfill, after.backfill
        if new is None:
            return
        if len(new.active) > new.parallel and (old is None or len(new.active) > len(old.active)):
            self.broken(
                PARALLEL, f"{after.name}: {len(new.active)} runs, {new.parallel} were asked for"
            )
        if old is not None and old.at == new.at:
            more = [
                run
                for run in new.runs
                if not any(_same(run, one) for one in old.runs) and run.number == 1
            ]
            held = old.paused or old.canceled or before.intent is ScheduleIntent.PAUSE
            if more and held:
                self.broken(
                    PAUSED, f"the backfill of {after.name} is {old.status}, and {more} begin"
                )
        if new.over and not new.canceled and (new.done + new.left != new.total or new.failed):
            self.broken(LOST_BACKFILL, f"the backfill of {after.name} has ended: {new.progress}")

    # ---- every moment
    # ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at the log, and at what is waited for."""
        for entry in self._depot.log[self._seen :]:
            self._seen += 1
            job = self._jobs[entry.publish_id]
            tick = job.key[: job.key.index("Z", job.key.index("@")) + 1]
            self._published[tick].append(job.key)
            if (at := tick_of_key(job.key)) is not None:
                self._done[job.schedule].setdefault(at, self._stage.now)
            if len(self._published[tick]) > 1 and not self._redone(job):
                self.broken(TWICE, f"{tick} is published by {self._published[tick]}")
        quiet = self._stage.now - self._trouble.quiet_since
        for name in list(self._core.schedules):
            record = self._core.load(name)
            assert record is not None
            waits = {(name, what) for what in (*self._waits(record), *self._told.waits(record))}
            for known in [
                known for known in self._since if known[0] == name and known not in waits
            ]:
                del self._since[known]
            for known in waits:
                since = self._since.setdefault(known, self._stage.now)
                if min(quiet, self._stage.now - since) > self._bound:
                    promise = next(
                        (one for begin, one in _PROMISES.items() if known[1].startswith(begin)),
                        LATE_TICK,
                    )
                    self.broken(
                        promise, f"{name} waits for {self._bound:.0f}s: {known[1]}; {record}"
                    )

    def _unread(self, record: ScheduleRecord) -> Iterator[str]:
        """A run for what has arrived, once a tick should have begun it."""
        unread, now = self._landing.unread(record.name), self._core.now
        clock_was_set_back = record.cursor > now  # none of its ticks comes for a while
        if not unread or record.runs or clock_was_set_back:
            return
        free_since = max(record.set_at, record.intent_at, record.busy_until)
        if min(self._stage.now - unread[0], now - free_since) >= TICK_WITHIN:
            yield f"{_ARRIVED} at {unread[0]}"

    def _redone(self, job: JobRecord) -> bool:
        """Whether a person wanted the tick to be run although it had been."""
        record = self._core.load(job.schedule)
        mine = (
            record is not None
            and record.backfill is not None
            and record.backfill.id == job.backfill
        )
        return bool(job.backfill) and not (mine and record.backfill.redo != "all")

    def _waits(self, record: ScheduleRecord) -> Iterator[str]:
        """What somebody should do for the schedule at once."""
        policy, now, backfill = policy_of(record.policy), self._core.now, record.backfill
        held = list(backfill.runs) if backfill is not None and backfill.halted else []
        if record.intent is not ScheduleIntent.RUN:
            asked = record.runs if record.intent is ScheduleIntent.PAUSE else ()
            held = [run for run in record.going_on if run not in asked or not run.by]
        for run in record.going_on:
            if not run.job and run.next_at <= now and run not in held:
                yield f"the submit of {run.key('')}"
            elif run.job and run.job in self._core.jobs and self._core.jobs[run.job].terminal:
                yield f"the look at the end of {run.job}"
        if backfill is not None and backfill.goes_on and record.intent is not ScheduleIntent.PAUSE:
            waits = backfill.in_order and any(
                not run.by_hand for run in (*record.runs, *record.retries)
            )
            if backfill.next is not None and len(backfill.active) < backfill.parallel and not waits:
                yield f"a run of the backfill at {backfill.next}"
        free = not record.runs or policy.overlap == "allow"
        if record.status.terminal or not free or record.ordered_backfill is not None:
            return
        if record.requests:
            yield f"the run that was asked for at {record.requests[0].tick}"
        if record.intent is not ScheduleIntent.RUN or record.halted:
            return
        if any(run.next_at <= now and not run.final for run in record.retries):
            yield "the retry"
        new = {
            name
            for name, one in self._core.published(record.follows).items()
            if one[0] > record.followed.get(name, 0)
        }
        all_of = policy.after is not None and policy.after.all_of
        if not record.retries and new and (not all_of or new == set(record.follows)):
            yield f"a run for {sorted(new)}"
        if (
            record.more_at
            and not record.retries
            and (policy.until is None or now < policy.until.timestamp())
        ):
            yield f"a run for what was left at {record.more_at}"
        if policy.only_if and not record.retries:
            yield from self._unread(record)
        tick = None if record.retries else next_tick(policy, _at(record.cursor))
        if tick is not None and tick + start_delay(policy, record.name) <= _at(now):
            yield f"the run of {tick}"


def _status(record: ScheduleRecord) -> ScheduleStatus:
    """Derived a second time."""
    if record.intent is ScheduleIntent.STOP:
        return ScheduleStatus.STOPPED
    if record.over:
        return ScheduleStatus.FINISHED
    if record.intent is ScheduleIntent.PAUSE:
        return ScheduleStatus.PAUSED
    if record.halted is not None:
        return ScheduleStatus.HALTED
    policy = policy_of(record.policy)
    if record.failures and (record.runs or policy.cron or policy.every):
        return ScheduleStatus.RETRYING
    if record.retries or any(run.trouble for run in record.runs):
        return ScheduleStatus.RETRYING
    return ScheduleStatus.RUNNING if any(run.job for run in record.runs) else ScheduleStatus.WAITING


def _same(one: Run, other: Run) -> bool:
    return (one.tick, one.number, one.by) == (other.tick, other.number, other.by)


def _passed(policy: ScheduleSpec, before: ScheduleRecord, after: ScheduleRecord) -> list[float]:
    """Return the ticks of ``policy`` over which the cursor has moved."""
    return (
        list(_between(policy, before.cursor, after.cursor)) if after.cursor > before.cursor else []
    )


def _unskipped(passed: list[float], change: ScheduleChange) -> list[float]:
    """Return those of ``passed`` ticks that no event of ``change`` reports as skipped."""
    spans = _spans(change.events) if passed else []
    return [tick for tick in passed if not any(first <= tick <= last for first, last in spans)]


def _spans(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the first and the last tick of each span that ``events`` report as skipped."""
    matches = [_SKIPPED.search(str(event.get("text", ""))) for event in events]
    return [(_seconds(match[1]), _seconds(match[2] or match[1])) for match in matches if match]


def _between(policy: ScheduleSpec, after: float, to: float) -> Iterator[float]:
    return (tick.timestamp() for tick in ticks(policy, _at(after), _at(to)))


def _at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
