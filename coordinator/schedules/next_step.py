"""Decides the next step of a schedule from its record, its runs and the time. Pure.

`decide_schedule.decide` takes these steps. The view of a schedule shows them.
"""

from __future__ import annotations

from collections.abc import Mapping

from unstuck.coordinator.model.schedule_record import Run, ScheduleIntent, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import tick_text, utc
from unstuck.coordinator.schedules.run_outcome import RunSeen, has_ended
from unstuck.coordinator.schedules.steps import (
    CLOCKS_DIFFER,
    NOTHING,
    Finish,
    Halt,
    Noticed,
    Published,
    RunEnded,
    Skip,
    Step,
    Submit,
    Wait,
    passed,
    policy_of,
)
from unstuck.coordinator.schedules.trigger import next_tick, start_delay
from unstuck.coordinator.spec.problems import listed
from unstuck.coordinator.spec.schedule_spec import After, ScheduleSpec
from unstuck.tasks.duration import format_duration

LATE = 60.0  # seconds for which a tick of `missed: none` may be late


def next_step(
    record: ScheduleRecord, runs: Mapping[str, RunSeen], now: float, published: Published = NOTHING
) -> Step:
    """Return the next step of a schedule.

    Args:
        runs: the stored jobs of its runs.
        now: seconds, by the clock of Redis.
        published: the newest versions of the datasets that it follows.
    """
    policy = policy_of(record.policy)
    free = not record.runs or policy.overlap == "allow"
    steps = _ended_run(record, runs), _final_wait(record), _before_ticks(record, free)
    for step in steps:
        if step is not None:
            return step
    if not free:
        return _while_running(record, runs)
    if (retry := _retry(record, policy, now)) is not None:
        return retry
    if record.more_at and not _is_over(policy, now):
        return Submit(Run(tick=_unused(record, record.more_at)), more=True)
    if policy.after is None:
        return _by_tick(record, policy, now)
    return _by_dataset(record, policy, policy.after, published, now)


def _ended_run(record: ScheduleRecord, runs: Mapping[str, RunSeen]) -> RunEnded | None:
    for run in record.runs:
        if has_ended(run, runs):
            return RunEnded(run, runs.get(run.job))
    return None


def _final_wait(record: ScheduleRecord) -> Wait | None:
    if record.intent is ScheduleIntent.STOP:
        return Wait("STOPPED", "it is stopped for good")
    return Wait("FINISHED", "no tick is left") if record.over else None


def _before_ticks(record: ScheduleRecord, free: bool) -> Step | None:
    """Return a step that precedes retries and ticks; None if there is none.

    An ordered backfill, a user command and a halt have such steps.

    Args:
        free: another run may begin.
    """
    if record.ordered_backfill is not None and free and not record.retries:
        progress = record.ordered_backfill.progress
        return Wait(
            "BACKFILL", f"its backfill comes first, since runs build on each other: {progress}"
        )
    if record.requests and free:
        return Submit(record.requests[0])
    if record.intent is ScheduleIntent.PAUSE:
        by = f" by {record.intent_by}" if record.intent_by else ""
        return Wait("PAUSED", f"it is paused{by}")
    return _halt(record)


def _halt(record: ScheduleRecord) -> Step | None:
    if record.halted is not None:
        return Wait("HALTED", record.halted.text)
    final = next((run.final for run in record.retries if run.final), None)
    return None if final is None else Halt(final)


def _retry(record: ScheduleRecord, policy: ScheduleSpec, now: float) -> Step | None:
    """Return the next try of a failed run, or a wait for it; None if ticks go on."""
    if not record.retries:
        return None
    for run in record.retries:
        if has_come(run, policy, now):
            return Submit(run)
    if policy.overlap == "allow":
        return None
    again = min(record.retries, key=lambda run: run.next_at)
    wait = format_duration(again.next_at - now)
    text = f"the run of {tick_text(again.tick)} failed, and is tried again in {wait}"
    return Wait("BACKOFF", text, again.next_at)


def has_come(run: Run, policy: ScheduleSpec, now: float) -> bool:
    """Return whether a run is due.

    A time too far in the future was written before the clock was set back, and counts as due.
    """
    return not now < run.next_at <= now + policy.retry.max_backoff + 1


def _while_running(record: ScheduleRecord, runs: Mapping[str, RunSeen]) -> Wait:
    run = record.runs[0]
    tick = tick_text(run.tick)
    if run.trouble is not None:
        text = f"the run of {tick} could not be submitted: {run.trouble.text}"
        return Wait(run.trouble.code, text, run.next_at)
    if not run.job:
        return Wait("SUBMITTING", f"the run of {tick} is being submitted")
    job_state = runs[run.job]  # `_ended_run` returns a run without one
    state = "goes on" if job_state.status is Status.RUNNING else f"is {job_state.status}"
    return Wait("RUN_GOES_ON", f"job {run.job} {state}, the run of {tick}")


def _by_tick(record: ScheduleRecord, policy: ScheduleSpec, now: float) -> Step:
    """Return the next step by the clock."""
    delay = start_delay(policy, record.name).total_seconds()
    come = upto = now - delay
    if policy.overlap == "skip" and record.cursor < record.busy_until:
        upto = min(record.busy_from, come)
        if not passed(policy, record.cursor, upto):
            during = passed(policy, record.cursor, min(record.busy_until, come))
            if during:
                return Skip("OVERLAP", "the run before was not over", *during)
            upto = come
    span = passed(policy, record.cursor, upto)
    if span is not None:
        return _made_up(policy, span, record.cursor, come)
    following = next_tick(policy, utc(max(record.cursor, come)))
    if following is not None:
        at = following.timestamp()
        return Wait("NEXT_TICK", _until_tick(record, at, now), at + delay)
    if record.clocked or _is_over(policy, now):
        return _at_its_end(record)
    return Wait("BY_HAND", "it runs when somebody asks for a run", until_of(policy))


def _until_tick(record: ScheduleRecord, tick: float, now: float) -> str:
    """Describe the wait for the next tick."""
    text = f"its next tick is {tick_text(tick)}"
    if record.cursor > now + CLOCKS_DIFFER:
        text = (
            f"the clock was set back: {tick_text(record.cursor)}, up to which ticks were decided, "
            f"is to come; {text}; `unstuck schedule resume {record.name}` counts from now"
        )
    quiet = record.quiet
    if quiet is None:
        return text
    ago = format_duration(max(0.0, now - quiet.looked_at))
    return f"nothing new since {tick_text(quiet.first)}, looked {ago} ago; {text}"


def _at_its_end(record: ScheduleRecord) -> Step:
    """Return the next step when no tick is left: runs that have begun end first."""
    if record.runs:
        return Wait("RUN_GOES_ON", "its last run goes on")
    if record.retries:
        return Wait("BACKOFF", "its last run failed, and is tried again")
    return Finish()


def _by_dataset(
    record: ScheduleRecord, policy: ScheduleSpec, after: After, published: Published, now: float
) -> Step:
    """Return the next step of a schedule that follows datasets.

    All versions that came since its last run make one run.
    """
    if _is_over(policy, now):
        return _at_its_end(record)
    new = _new_versions(record, published)
    lacking = [name for name in record.follows if name not in new]
    if not new or (lacking and after.all_of):
        text = f"it waits for a new version of {listed(lacking)}"
        return Wait("DATASETS", text, until_of(policy))
    published_at = max(at for _, at in new.values())
    delay = _delay(record, policy, sorted(new), record.new_at or published_at, now)
    if delay is not None:
        return delay
    tick = max(published_at, record.cursor + 0.001)
    versions = record.followed | {name: version for name, (version, _) in new.items()}
    return Submit(Run(tick=_unused(record, tick)), versions)


def _new_versions(record: ScheduleRecord, published: Published) -> Published:
    """Return the published versions for which the schedule has not run."""
    return {
        name: newest
        for name, newest in published.items()
        if newest[0] > record.followed.get(name, 0)
    }


def _delay(
    record: ScheduleRecord, policy: ScheduleSpec, new: list[str], new_at: float, now: float
) -> Step | None:
    """Return the wait of a run for its delay after the first new version; None if it is over."""
    begins = new_at + start_delay(policy, record.name).total_seconds()
    # A publisher whose clock is ahead must not hold up the run.
    if begins <= now or new_at > now + CLOCKS_DIFFER:
        return None
    if not record.new_at:
        return Noticed(new_at)
    return Wait("DELAY", f"{listed(new)} is new, and it begins a little later", begins)


def until_of(policy: ScheduleSpec) -> float | None:
    """Return the time after which the schedule has no runs (``until:``); None without one."""
    return None if policy.until is None else policy.until.timestamp()


def _is_over(policy: ScheduleSpec, now: float) -> bool:
    until = until_of(policy)
    return until is not None and until <= now


def _unused(record: ScheduleRecord, tick: float) -> float:
    """Return ``tick`` in whole milliseconds, moved past the ticks of other runs."""
    runs = (*record.runs, *record.retries, *record.requests)
    used = {record.cursor, *(run.tick for run in runs)}
    tick = round(tick, 3)  # never cut off, which could be the tick before again
    while tick in used:
        tick = round(tick + 0.001, 3)
    return tick


def _made_up(
    policy: ScheduleSpec, span: tuple[float, float, int], cursor: float, come: float
) -> Step:
    """Decide about ticks that have come: run the first, or skip some.

    Args:
        come: the newest time at which a tick may start a run.
    """
    first, last, count = span
    within = LATE if policy.missed == "none" else policy.missed_within
    limit = come - max(within, LATE)
    if last < limit:
        return Skip("MISSED", f"they are older than {format_duration(within)}", first, last, count)
    begin = last
    if policy.missed == "all":
        begin = first
        if first < limit:
            begin = (next_tick(policy, utc(come - within)) or utc(last)).timestamp()
    if begin > first and (missed := passed(policy, cursor, begin - 1e-6)):
        text = f"nobody could run them in time, and `missed` is `{policy.missed}`"
        return Skip("MISSED", text, *missed)
    return Submit(Run(tick=begin))
