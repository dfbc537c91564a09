"""Explains the status of a schedule by the rules that decide it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unstuck.coordinator.explain.explanation import Idle
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import (
    RunSuccess,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.schedule_state import ScheduleState
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.tasks.duration import format_duration
from unstuck.tasks.json_fields import Time


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a schedule.

    Attributes:
        what: its kind, such as ``running`` or ``next``.
        text: the fact in words.
        at: its time; 0 if it has none.
    """

    what: str
    text: str
    at: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleExplanation:
    """Why a schedule is in its status. Times are seconds by the clock of Redis.

    Attributes:
        name: of the schedule.
        status: of the schedule.
        what: what it waits for.
        since: when it entered its status.
        facts: about its runs, its failures and its next tick.
        help: commands that would help.
        backlog: unread input of its streams when a coordinator looked last; None if none looked.
    """

    name: str
    status: ScheduleStatus
    what: str
    since: Time
    facts: tuple[Fact, ...]
    help: tuple[str, ...]
    backlog: Backlog | None = None


def explain_schedule(
    view: ScheduleState, idle: Idle, jobs: Mapping[str, str]
) -> ScheduleExplanation:
    """Explain a schedule.

    Args:
        idle: how long no coordinator has looked at any job.
        jobs: job of an active run → what that job waits for.
    """
    schedule, what, advice = view.schedule, view.waits, list(_help(view.schedule))
    if idle.seconds > idle.limit and not schedule.status.terminal:
        what = (
            f"no coordinator has looked for {format_duration(idle.seconds)}, and nothing "
            "happens before one does"
        )
        advice.insert(0, "unstuck fleet")
    facts = (*_facts(schedule, jobs), *backlog_facts(view.backlog), *_next(view))
    return ScheduleExplanation(
        name=schedule.name,
        status=schedule.status,
        what=what,
        since=schedule.since,
        facts=facts,
        help=tuple(advice),
        backlog=view.backlog,
    )


def _facts(schedule: ScheduleRecord, jobs: Mapping[str, str]) -> Iterator[Fact]:
    if schedule.intent is not ScheduleIntent.RUN:
        by = f"{schedule.intent} by {schedule.intent_by or 'somebody'}"
        yield Fact("asked", _with_detail(by, schedule.intent_why), schedule.intent_at)
    yield from _success_facts(schedule.last_success)
    yield from _failure_facts(schedule)
    for run in schedule.going_on:
        if run.trouble is not None:
            text = f"{run.trouble.code}: {run.trouble.text}; tried {run.tries} times"
            yield Fact("trouble", text, run.at)
        elif run.job:
            text = f"job {run.job}, of {tick_text(run.tick)}"
            yield Fact("running", _with_detail(text, jobs.get(run.job, "")), run.at)
    if (quiet := schedule.quiet) is not None:
        yield Fact("quiet", f"nothing new at {quiet.count:,} ticks; looked last", quiet.looked_at)
    if (fill := schedule.backfill) is not None and not fill.over:
        why = f"; {fill.halted.text}" if fill.halted else ""
        yield Fact("backfill", f"{fill.status}: {fill.progress}{why}")


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def _success_facts(last: RunSuccess | None) -> Iterator[Fact]:
    if last is None:
        yield Fact("well", "no tick is done yet")
        return
    rows = ", ".join(f"{name} {count:,} rows" for name, count in last.rows.items())
    version = f"version {last.version}" if last.version else "nothing to publish"
    yield Fact("well", _with_detail(f"job {last.job}, {version}", rows), last.at)
    if last.left:
        yield Fact(
            "left",
            f"{last.left:,} files or offsets, beyond the bound of one run; the next begins at once",
        )


def _failure_facts(schedule: ScheduleRecord) -> Iterator[Fact]:
    if schedule.failures:
        retry = "no retry is pending"
        is_active = schedule.retries or schedule.runs
        if is_active and schedule.status is not ScheduleStatus.HALTED:
            retry = f"up to {policy_of(schedule.policy).retry.max} are tried again"
        yield Fact("failures", f"{schedule.failures} in a row; {retry}")
    first, last = schedule.first_error, schedule.last_error
    errors = {"first error": first, "last error": last}
    if first in (None, last):
        errors = {"error": last}
    for what, error in errors.items():
        if error is not None:
            yield Fact(what, f"{error.code}: {error.text}   unstuck logs {error.job}", error.at)


def backlog_facts(backlog: Backlog | None) -> Iterator[Fact]:
    """Yield the unread amount and the position of each stream at the last look of a coordinator."""
    if backlog is not None:
        for address, stream in backlog.streams.items():
            yield Fact("backlog", f"{address}: {stream.describe(backlog.at)}; looked", backlog.at)
            if stream.position:
                yield Fact("position", f"{address}: {stream.position}")


def _next(view: ScheduleState) -> Iterator[Fact]:
    schedule = view.schedule
    for run in schedule.retries if schedule.status is ScheduleStatus.RETRYING else ():
        yield Fact("next", f"try {run.number} of {tick_text(run.tick)}", run.next_at)
    for tick in view.next_ticks(1):
        yield Fact("next", f"the tick of {tick_text(tick.timestamp())}", tick.timestamp())


def _help(schedule: ScheduleRecord) -> Iterator[str]:
    """Yield the commands that would help."""
    name = schedule.name
    match schedule.status:
        case ScheduleStatus.PAUSED:
            yield f"unstuck schedule resume {name}"
        case ScheduleStatus.HALTED:
            yield (
                f"unstuck schedule set SPEC   # with the mended spec of {name}: it is tried at once"
            )
            yield f"unstuck schedule resume {name}"
        case ScheduleStatus.STOPPED | ScheduleStatus.FINISHED:
            yield f"unstuck schedule remove {name}   # and set it again"
        case ScheduleStatus.RETRYING:
            yield f"unstuck schedule run {name}   # try at once"
        case _ if schedule.failures:
            yield f"unstuck schedule run {name}   # another try"
    if schedule.last_error is not None:
        yield f"unstuck logs {schedule.last_error.job}"
    yield from backfill_help(schedule)


def backfill_help(schedule: ScheduleRecord) -> tuple[str, ...]:
    """Return commands that help with a FAILED backfill."""
    fill, name = schedule.backfill, schedule.name
    if fill is None or fill.over or fill.canceled or fill.halted is None:
        return ()
    skips = (f"unstuck schedule skip {name} {tick_text(run.tick)}" for run in fill.failed[:1])
    return (
        f"unstuck schedule resume-backfill {name}",
        *skips,
        f"unstuck schedule cancel-backfill {name}",
    )
