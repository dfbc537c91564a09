"""Decides a schedule: from its record, its runs and the time, what is to be done next (pure).

``decide_schedule`` names one step, and what explains a schedule asks it too. ``decide`` goes on
until one is to wait.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.decide.timers.backoff import doubled
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    Run,
    RunFailure,
    RunSuccess,
    ScheduleIntent,
    ScheduleRecord,
    check_schedule_status,
    derive,
)
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.backfill import (
    NO_TICKS,
    ScheduleContext,
    Ticks,
    advance,
    busy_ticks,
    ended_event,
    stored_runs,
)
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick, start_delay, ticks
from unstuck.coordinator.spec.problems import listed
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.fields import STORED

LATE = 60.0  # seconds for which a tick of `missed: none` may be late
MAX_COUNTED = 10_000  # ticks of one skip: more are not counted
MAX_STEPS = 100  # in one decision; the rest follow with due = now
CLOCKS_DIFFER = 60.0  # seconds by which the clock of a publisher may differ from that of Redis
# Seconds between looks at a schedule whose run goes on: the end of the run makes it due.
LOOK = 60.0
TERM = 2.5  # seconds for which a run that is being submitted is left to one coordinator, by default
IDLE_LOOK = 600.0  # seconds between looks at a schedule that waits for a person


Published = Mapping[str, tuple[int, float]]
"""Dataset → its newest version that a job has published, and when."""
NOTHING: Published = MappingProxyType({})
STANDS = Reason("DONE", "its package stands in the warehouse log")


@dataclass(frozen=True, slots=True)
class LogSeen:
    """What the warehouse log has of the ticks of a schedule, which its record may have forgotten in
    a rollback.

    Attributes:
        since: ticks before it were not looked for.
        runs: tick → its run that was published.
        noted: those of these ticks whose run is known to be done.
    """

    since: float
    runs: Mapping[float, RunSuccess]
    noted: Collection[float] = ()


NOT_READ = LogSeen(inf, {})
EMPTY_LOG = LogSeen(-inf, {})


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run has ended; ``job_state`` is None if its job is not in the store any more."""

    run: Run
    job_state: RunSeen | None


@dataclass(frozen=True, slots=True)
class Submit:
    """A run is to be submitted.

    Attributes:
        versions: the versions of the datasets that its schedule follows, by name.
        more: for what the run before has left.
    """

    run: Run
    versions: Mapping[str, int] | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Ticks that get no run, with the reason."""

    code: str
    text: str
    first: float
    last: float
    count: int

    @property
    def told(self) -> str:
        """In words: ``12 ticks skipped, 2026-11-27T03:10:00Z to 2026-11-27T05:00:00Z: why``."""
        many = f"more than {MAX_COUNTED:,}" if self.count > MAX_COUNTED else f"{self.count:,}"
        span = (
            tick_text(self.first)
            if self.count == 1
            else f"{tick_text(self.first)} to {tick_text(self.last)}"
        )
        return f"{many} tick{'s' if self.count > 1 else ''} skipped, {span}: {self.text}"


@dataclass(frozen=True, slots=True)
class Stands:
    """A tick that would be skipped is done: its package is in the warehouse log. ``noted``: that is
    known.
    """

    run: RunSuccess
    noted: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """A new version of a dataset starts the delay of the next run; later versions do not extend it.

    Attributes:
        at: when that version was published.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done before ``until``, or before something happens (None)."""

    code: str
    text: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """The schedule cannot go on by itself."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Finish:
    """No tick is left."""


Step = RunEnded | Submit | Skip | Stands | Noticed | Wait | Halt | Finish


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """The record of a schedule to commit, with its events and its next due.

    Attributes:
        read_log_since: a tick that is skipped unless the warehouse log has its package; None: none
            is.
    """

    record: ScheduleRecord
    events: tuple[dict[str, Any], ...]
    due: float | None
    read_log_since: float | None = None

    def submits(self, now: float) -> list[Run]:
        """The runs that are to be submitted; once more, if nobody has noted how that ended.

        Under a pause only those that a person asked for, and none after a stop.
        """
        record, policy = self.record, policy_of(self.record.policy)
        runs = list(record.runs)
        if record.intent is not ScheduleIntent.RUN:
            runs = [run for run in runs if run.by and record.intent is ScheduleIntent.PAUSE]
        elif record.backfill is not None and not record.backfill.halted:
            runs += record.backfill.active
        return [run for run in runs if not run.job and _has_come(run, policy, now)]


@lru_cache(1024)
def policy_of(text: str) -> ScheduleSpec:
    """The policy of a record."""
    return ScheduleSpec.model_validate_json(text, context=STORED)


def decide(
    record: ScheduleRecord,
    runs: Mapping[str, RunSeen],
    now: float,
    published: Published = NOTHING,
    term: float = TERM,
    ticks_of_backfill: Ticks = NO_TICKS,
    log: LogSeen = EMPTY_LOG,
) -> ScheduleDecision:
    """Decide until there is nothing to do but wait.

    Args:
        runs: the jobs of its runs that are in the store, also of those of which nobody has noted
            that.
        now: seconds, by the clock of Redis.
        published: the newest versions of the datasets that it follows.
        term: seconds after which another coordinator submits a run that is still being submitted.
        ticks_of_backfill: those in the `window` of its backfill that had a run or were skipped.
        log: no tick is skipped before the warehouse log was read.
    """
    read_log_since: float | None = None
    events: list[dict[str, Any]] = []
    due: float | None = now
    if record.intent is ScheduleIntent.STOP:
        stored, events = stored_runs(record.name, record.runs, runs, now)
        record = replace(record, runs=stored)
    for _ in range(MAX_STEPS):
        step = decide_schedule(record, runs, now, published)
        if isinstance(step, Wait):
            due = _look_at(record, step, now, term)
            break
        if isinstance(step, Skip) and step.first < log.since:
            due, read_log_since = now + term, step.first
            break
        record, event = _after(record, _skipped_or_published(record, step, log), now)
        events += [event] if event else []
    if record.backfill is not None:
        record, more = _backfilled(record, record.backfill, runs, ticks_of_backfill, now)
        events += more
        due = (
            now
            if due is not None and any(event["kind"] == "BACKFILL_ENDED" for event in more)
            else due
        )
    record = settled(record, now)
    looks = [] if (record.status.terminal and not record.runs) or due is None else [due]
    if record.backfill is not None and not record.backfill.over:
        looks.append(_look_at_backfill(record, record.backfill, now, term))
    return ScheduleDecision(record, tuple(events), min(looks, default=None), read_log_since)


def earliest_package(record: ScheduleRecord, tick: float, after: float = 0.0) -> float:
    """Return the time before which no package of ``tick`` was written. ``after``: when its last run
    ended.

    A tick that was run by a clock that was ahead has its package from before its time.
    """
    return 0.0 if tick <= record.decided_to else max(tick, after) - CLOCKS_DIFFER


def pass_over(
    record: ScheduleRecord, skip: Skip, log: LogSeen, now: float
) -> tuple[ScheduleRecord, list[dict[str, Any]]]:
    """Move ``record`` past the ticks of ``skip``. Returns also the events: of skipped ticks, and of
    published ones.
    """
    events: list[dict[str, Any]] = []
    policy = policy_of(record.policy)
    while (left := passed(policy, record.cursor, skip.last)) is not None:
        step = _skipped_or_published(record, Skip(skip.code, skip.text, *left), log)
        record, event = _after(record, step, now)
        events += [event] if event else []
    return record, events


def _skipped_or_published(record: ScheduleRecord, step: Step, log: LogSeen) -> Step:
    """Return ``step``, or its first part if it skips ticks of which the log has packages."""
    if not isinstance(step, Skip):
        return step
    policy = policy_of(record.policy)
    done = [
        at
        for at in sorted(log.runs)
        if step.first <= at <= step.last and passed(policy, at - 0.001, at)
    ]
    if not done:
        return step
    before = passed(policy, record.cursor, done[0] - 0.001)
    if before is None:
        return Stands(log.runs[done[0]], noted=done[0] in log.noted)
    return Skip(step.code, step.text, *before)


def _backfilled(
    record: ScheduleRecord,
    backfill: Backfill,
    runs: Mapping[str, RunSeen],
    ticks: Ticks,
    now: float,
) -> tuple[ScheduleRecord, list[dict[str, Any]]]:
    """``record`` with its backfill advanced, and the events of that."""
    context = ScheduleContext(
        record.name, record.intent is ScheduleIntent.PAUSE, busy_ticks(record), ticks
    )
    advanced, events = advance(context, backfill, policy_of(backfill.policy), runs, now)
    record = replace(record, backfill=advanced)
    for run in backfill.runs:
        job_state = runs.get(run.job)
        if (
            job_state is not None
            and job_state.status is Status.FINISHED
            and run not in advanced.runs
        ):
            record = backfill_succeeded(record, run, job_state)
    return record, events


def backfill_succeeded(record: ScheduleRecord, run: Run, job_state: RunSeen) -> ScheduleRecord:
    """``record`` after a run of its backfill ended well: the last success is that of the newest
    tick that is done.
    """
    run_success = RunSuccess(
        run.job, run.tick, job_state.ended_at, job_state.version, job_state.rows
    )
    return _succeeded(_after_take_over(record, job_state), run_success)


def _succeeded(record: ScheduleRecord, run: RunSuccess) -> ScheduleRecord:
    last = record.last_success
    return (
        record if last is not None and last.tick >= run.tick else replace(record, last_success=run)
    )


def decide_schedule(
    record: ScheduleRecord, runs: Mapping[str, RunSeen], now: float, published: Published = NOTHING
) -> Step:
    """The next step."""
    for run in record.runs:
        if run.job and ((job_state := runs.get(run.job)) is None or job_state.status.terminal):
            return RunEnded(run, job_state)
    if record.intent is ScheduleIntent.STOP:
        return Wait("STOPPED", "it is stopped for good")
    if record.over:
        return Wait("FINISHED", "no tick is left")
    policy = policy_of(record.policy)
    free = not record.runs or policy.overlap == "allow"
    step = _before_ticks(record, free)
    if step is not None:
        return step
    if not free:
        return _while_running(record, runs)
    retry = _retry(record, policy, now)
    if retry is not None:
        return retry
    if record.more_at and (policy.until is None or now < policy.until.timestamp()):
        return Submit(Run(tick=_unused(record, record.more_at)), more=True)
    if policy.after is None:
        return _by_tick(record, policy, now)
    return _by_dataset(record, policy, published, now)


def _before_ticks(record: ScheduleRecord, free: bool) -> Step | None:
    """Return the step that precedes retries and ticks: of an ordered backfill, of a user command,
    or of a halt; None if there is none.

    ``free``: another run may begin.
    """
    if record.ordered_backfill is not None and free and not record.retries:
        progress = record.ordered_backfill.progress
        return Wait(
            "BACKFILL", f"its backfill comes first, since runs build on each other: {progress}"
        )
    if record.requests and free:
        return Submit(record.requests[0])
    if record.intent is ScheduleIntent.PAUSE:
        return Wait(
            "PAUSED", f"it is paused{f' by {record.intent_by}' if record.intent_by else ''}"
        )
    if record.halted is not None:
        return Wait("HALTED", record.halted.text)
    final = next((run.final for run in record.retries if run.final), None)
    return None if final is None else Halt(final)


def _retry(record: ScheduleRecord, policy: ScheduleSpec, now: float) -> Step | None:
    """Return the step of the failed runs: the next try, or a wait for it; None if ticks go on."""
    come = next((run for run in record.retries if _has_come(run, policy, now)), None)
    if come is not None:
        return Submit(come)
    if not record.retries or policy.overlap == "allow":
        return None
    again = min(record.retries, key=lambda run: run.next_at)
    text = (
        f"the run of {tick_text(again.tick)} failed, and is tried again in "
        f"{format_duration(again.next_at - now)}"
    )
    return Wait("BACKOFF", text, again.next_at)


def _has_come(run: Run, policy: ScheduleSpec, now: float) -> bool:
    """The time of a run has come; also one that is so far ahead that the clock was set back
    since.
    """
    return not now < run.next_at <= now + policy.retry.max_backoff + 1


def settled(record: ScheduleRecord, now: float) -> ScheduleRecord:
    """``record`` with its status as it follows from the rest. Raises: IllegalMove."""
    status = derive(record)
    check_schedule_status(record.name, record.status, status)
    return record if status is record.status else replace(record, status=status, since=now)


def passed(policy: ScheduleSpec, after: float, to: float) -> tuple[float, float, int] | None:
    """The first tick after ``after``, the last one up to ``to``, and how many these are; None if
    there is none.
    """
    first = next_tick(policy, _at(after))
    if first is None or first.timestamp() > to:
        return None
    last = previous_tick(policy, _at(to) + datetime.timedelta(microseconds=1)) or first
    count = 0
    for count, _ in enumerate(ticks(policy, _at(after), _at(to)), 1):
        if count > MAX_COUNTED:
            break
    return first.timestamp(), last.timestamp(), count


def _while_running(record: ScheduleRecord, runs: Mapping[str, RunSeen]) -> Wait:
    run = record.runs[0]
    if run.trouble is not None:
        return Wait(
            run.trouble.code,
            f"the run of {tick_text(run.tick)} could not be submitted: {run.trouble.text}",
            run.next_at,
        )
    if not run.job:
        return Wait("SUBMITTING", f"the run of {tick_text(run.tick)} is being submitted")
    job_state = runs.get(run.job)
    state_text = (
        "goes on"
        if job_state is None or job_state.status is Status.RUNNING
        else f"is {job_state.status}"
    )
    return Wait("RUN_GOES_ON", f"job {run.job} {state_text}, the run of {tick_text(run.tick)}")


def _by_tick(record: ScheduleRecord, policy: ScheduleSpec, now: float) -> Step:
    """The next step by the clock."""
    delay = start_delay(policy, record.name).total_seconds()
    come = upto = now - delay
    if policy.overlap == "skip" and record.cursor < record.busy_until:
        upto = min(record.busy_from, come)
        if record.cursor >= upto or not passed(policy, record.cursor, upto):
            during = passed(policy, record.cursor, min(record.busy_until, come))
            if during:
                return Skip("OVERLAP", "the run before was not over", *during)
            upto = come
    span = passed(policy, record.cursor, upto)
    if span is not None:
        return _made_up(policy, span, record.cursor, come)
    nxt = next_tick(policy, _at(max(record.cursor, come)))
    if nxt is not None:
        at = nxt.timestamp()
        text = f"its next tick is {tick_text(at)}"
        if record.cursor > now + CLOCKS_DIFFER:
            last = (
                f"the clock was set back: {tick_text(record.cursor)}, up to which ticks were "
                "decided, is to come"
            )
            text = f"{last}; {text}; `unstuck schedule resume {record.name}` counts from now"
        if (quiet := record.quiet) is not None:
            ago = format_duration(max(0.0, now - quiet.looked_at))
            text = f"nothing new since {tick_text(quiet.first)}, looked {ago} ago; {text}"
        return Wait("NEXT_TICK", text, at + delay)
    if record.clocked or (policy.until is not None and policy.until.timestamp() <= now):
        return _at_its_end(record)
    until = None if policy.until is None else policy.until.timestamp()
    return Wait("BY_HAND", "it runs when somebody asks for a run", until)


def _at_its_end(record: ScheduleRecord) -> Step:
    """The next step when no tick is left: what has begun comes to its end first."""
    if record.runs:
        return Wait("RUN_GOES_ON", "its last run goes on")
    if record.retries:
        return Wait("BACKOFF", "its last run failed, and is tried again")
    return Finish()


def _by_dataset(
    record: ScheduleRecord, policy: ScheduleSpec, published: Published, now: float
) -> Step:
    """The next step of a schedule that follows datasets.

    All versions that came since its last run make one run.
    """
    until = None if policy.until is None else policy.until.timestamp()
    if until is not None and until <= now:
        return _at_its_end(record)
    new = {
        name: newest for name, newest in published.items() if newest[0] > record.seen.get(name, 0)
    }
    lacking = [name for name in record.follows if name not in new]
    if not new or (lacking and policy.after is not None and policy.after.all_of):
        return Wait("DATASETS", f"it waits for a new version of {listed(lacking)}", until)
    published_at = max(at for _, at in new.values())
    new_at = record.new_at or published_at
    begins = new_at + start_delay(policy, record.name).total_seconds()
    # A publisher whose clock is ahead must not hold up the run.
    if begins > now and new_at <= now + CLOCKS_DIFFER:
        if not record.new_at:
            return Noticed(new_at)
        return Wait("DELAY", f"{listed(sorted(new))} is new, and it begins a little later", begins)
    tick = max(published_at, record.cursor + 0.001)
    versions = {**record.seen, **{name: version for name, (version, _) in new.items()}}
    return Submit(Run(tick=_unused(record, tick)), versions)


def _unused(record: ScheduleRecord, tick: float) -> float:
    """Return ``tick`` in whole milliseconds, as in keys, or the next one that is not the tick of
    another run.
    """
    runs = (*record.runs, *record.retries, *record.requests)
    used = {record.cursor, *(run.tick for run in runs)}
    tick = round(tick, 3)  # never cut off, which could be the tick before again
    while tick in used:
        tick = round(tick + 0.001, 3)
    return tick


def _made_up(
    policy: ScheduleSpec, span: tuple[float, float, int], cursor: float, now: float
) -> Step:
    """Decide about ticks that have come: the first is run, or some are skipped."""
    first, last, count = span
    within = policy.missed_within if policy.missed != "none" else LATE
    if now - last > max(within, LATE):
        return Skip("MISSED", f"they are older than {format_duration(within)}", first, last, count)
    begin = first
    if policy.missed == "all" and now - first > max(within, LATE):
        begin = (next_tick(policy, _at(now - within)) or _at(last)).timestamp()
    elif policy.missed != "all":
        begin = last
    if begin > first and (missed := passed(policy, cursor, begin - 1e-6)):
        return Skip(
            "MISSED", f"nobody could run them in time, and `missed` is `{policy.missed}`", *missed
        )
    return Submit(Run(tick=begin))


def _after(
    record: ScheduleRecord, step: Step, now: float
) -> tuple[ScheduleRecord, dict[str, Any] | None]:
    """The record after ``step``, and the event of it."""
    match step:
        case RunEnded(run, job_state):
            return after_end(record, run, job_state, now)
        case Submit():
            return _begun(record, step, now), None
        case Skip(code):
            event = {"kind": "SKIPPED", "at": now, "code": code, "text": step.told}
            return replace(record, cursor=max(record.cursor, step.last)), event
        case Stands(run, noted):
            job_state = RunSeen(Status.FINISHED, run.at, STANDS, version=run.version)
            event = ended_event("", Run(run.tick, job=run.job), job_state, now)
            passed_it = replace(record, cursor=max(record.cursor, run.tick))
            return _succeeded(passed_it, run), None if noted else event
        case Noticed(at):
            return replace(record, new_at=at), None
        case Halt(reason):
            event = {"kind": "HALTED", "at": now, "code": reason.code, "text": reason.text}
            return replace(record, halted=reason), event
        case Finish():
            return replace(record, over=True), {
                "kind": "FINISHED",
                "at": now,
                "text": "no tick is left",
            }
    raise AssertionError(step)


def _begun(record: ScheduleRecord, step: Submit, now: float) -> ScheduleRecord:
    """Return ``record`` with the run of ``step``, which is to be submitted."""
    run, versions = step.run, step.versions
    rest: dict[str, Any] = {
        "requests": tuple(other for other in record.requests if other is not run),
        "retries": tuple(other for other in record.retries if other is not run),
    }
    if versions is not None:
        rest |= {"seen": dict(versions), "new_at": 0.0}
    if step.more:  # no gap in which a tick could have been free
        rest |= {"more_at": 0.0, "busy_until": now}
    # A retry has the number 1 if its run could not be submitted; the cursor is past its tick.
    by_tick = run.number == 1 and not run.by and not step.more and run not in record.retries
    cursor = max(record.cursor, run.tick) if by_tick else record.cursor
    begun = replace(run, at=now, next_at=0.0, final=None)
    return replace(record, runs=(*record.runs, begun), cursor=cursor, **rest)


def after_end(
    record: ScheduleRecord, run: Run, job_state: RunSeen | None, now: float
) -> tuple[ScheduleRecord, dict[str, Any] | None]:
    """The record after the end of ``run``, and the event of it."""
    others = tuple(other for other in record.runs if other is not run)
    if job_state is None:
        # A store that was rolled back: submitting the run again is the same job, and finds its
        # package if it stands.
        return replace(record, runs=(*others, replace(run, job=""))), None
    on_and_on = record.cursor < record.busy_from or run.at <= record.busy_until
    busy_from = record.busy_from if on_and_on else run.at
    record = replace(
        record,
        runs=others,
        busy_from=busy_from,
        busy_until=max(record.busy_until, job_state.ended_at),
    )
    event = ended_event("", run, job_state, now)
    if job_state.status is Status.FINISHED:
        well = RunSuccess(
            run.job, run.tick, job_state.ended_at, job_state.version, job_state.rows, job_state.left
        )
        record = replace(record, last_success=well, failures=0, first_error=None, last_error=None)
        record = _after_take_over(record, job_state)
        record = replace(
            record,
            more_at=_beside_ticks(policy_of(record.policy), job_state.ended_at)
            if job_state.left
            else 0.0,
        )
    elif (
        job_state.status is Status.FAILED and not run.by_hand
    ):  # which has no tick that could be tried again
        record = _failed(record, run, job_state, now)
    return record, event


def _after_take_over(record: ScheduleRecord, job_state: RunSeen) -> ScheduleRecord:
    """``record`` after a run ended well: once it has published, the job owns what it publishes."""
    return replace(record, take_over=False) if record.take_over and job_state.version else record


def _beside_ticks(policy: ScheduleSpec, at: float) -> float:
    """``at``, in whole milliseconds as keys have it, or the next one where a tick has that key."""
    at = round(at, 3)
    tick = next_tick(policy, _at(at - 0.001))
    return at if tick is None or tick.timestamp() > at else round(at + 0.001, 3)


def _failed(record: ScheduleRecord, run: Run, job_state: RunSeen, now: float) -> ScheduleRecord:
    policy, reason = policy_of(record.policy), job_state.reason or Reason("FAILED", "it failed")
    failure = RunFailure(run.job, run.tick, job_state.ended_at, reason.code, reason.text)
    failures = record.failures + 1
    record = replace(
        record, failures=failures, first_error=record.first_error or failure, last_error=failure
    )
    final = (
        Reason(reason.code, f"no further try can mend it: {reason.text}")
        if job_state.final
        else None
    )
    if final is None and failures > policy.retry.max:
        if policy.cron is not None and not record.builds_on:
            return record  # its next tick is the next try
        final = Reason(
            "RETRIES_EXHAUSTED", f"{failures} runs failed in a row; the last: {reason.text}"
        )
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


def _look_at(record: ScheduleRecord, wait: Wait, now: float, term: float) -> float:
    """When the schedule is looked at next: at the time that it waits for, and from time to time in
    any case.
    """
    times = [_look_at_run(run, now, term) for run in record.runs]
    times += [
        run.next_at for run in record.retries if run.next_at > now
    ]  # beside the ticks, where overlap allows it
    # What should have come by now is being done: at once again would be the whole turn of the
    # sweep.
    return min([*times, now + IDLE_LOOK if wait.until is None or wait.until <= now else wait.until])


def _look_at_backfill(record: ScheduleRecord, backfill: Backfill, now: float, term: float) -> float:
    held = record.intent is ScheduleIntent.PAUSE or backfill.next in busy_ticks(record)
    if (
        backfill.goes_on
        and not held
        and backfill.next is not None
        and len(backfill.active) < backfill.parallel
    ):
        return now  # there were more ticks to pass than one decision may
    return min([*(_look_at_run(run, now, term) for run in backfill.active), now + IDLE_LOOK])


def _look_at_run(run: Run, now: float, term: float) -> float:
    if run.job:
        return now + LOOK
    return run.next_at if run.next_at > now else now + term


def _at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
