"""Explains a schedule by the rules that decide it: where it stands, what comes next, and what would
help (pure).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unstuck.coordinator.explain.explanation import Idle
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import RunSuccess, ScheduleIntent, ScheduleStatus
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.schedule_facts import ScheduleFacts
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.tasks.duration import format_duration


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to know of a schedule; ``at``: when that was or will be, 0 if it has no time."""

    what: str
    text: str
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleExplanation:
    """Why a schedule is where it is, since when, and what would help; times are seconds by the
    clock of Redis.
    """

    name: str
    status: ScheduleStatus
    what: str
    since: float
    facts: tuple[Fact, ...]
    help: tuple[str, ...]
    backlog: Backlog | None = None


def explain_schedule(
    view: ScheduleView, idle: Idle, jobs: Mapping[str, str]
) -> ScheduleExplanation:
    """Explain a schedule.

    Args:
        idle: for how long no coordinator has looked at anything.
        jobs: of its runs that go on → what that job waits for.
    """
    schedule, what, advice = view.schedule, view.waits, list(_help(view.schedule))
    if idle.seconds > idle.limit and not schedule.status.terminal:
        what = (
            f"no coordinator has looked for {format_duration(idle.seconds)}, and nothing "
            "happens before one does"
        )
        advice.insert(0, "unstuck fleet")
    facts = (*_facts(schedule, jobs), *backlog_facts(view), *_next(view))
    return ScheduleExplanation(
        name=schedule.name,
        status=schedule.status,
        what=what,
        since=schedule.since,
        facts=facts,
        help=tuple(advice),
        backlog=view.backlog,
    )


def _facts(schedule: ScheduleFacts, jobs: Mapping[str, str]) -> Iterator[Fact]:
    if schedule.intent is not ScheduleIntent.RUN:
        why = f": {schedule.intent_why}" if schedule.intent_why else ""
        yield Fact(
            "asked",
            f"{schedule.intent} by {schedule.intent_by or 'somebody'}{why}",
            schedule.intent_at,
        )
    yield from _success_facts(schedule.last_success)
    yield from _failure_facts(schedule)
    for run in schedule.going_on:
        if run.trouble is not None:
            yield Fact(
                "trouble",
                f"{run.trouble.code}: {run.trouble.text}; tried {run.tries} times",
                run.at,
            )
        elif run.job:
            why = f": {jobs[run.job]}" if jobs.get(run.job) else ""
            yield Fact("running", f"job {run.job}, of {tick_text(run.tick)}{why}", run.at)
    if schedule.quiet is not None:
        yield Fact(
            "quiet",
            f"nothing new at {schedule.quiet.count:,} ticks; looked last",
            schedule.quiet.looked_at,
        )
    if schedule.backfill is not None and not schedule.backfill.over:
        why = f"; {schedule.backfill.halted.text}" if schedule.backfill.halted else ""
        yield Fact("backfill", f"{schedule.backfill.status}: {schedule.backfill.progress}{why}")


def _success_facts(last: RunSuccess | None) -> Iterator[Fact]:
    if last is None:
        yield Fact("well", "no tick is done yet")
        return
    rows = ", ".join(f"{name} {count:,} rows" for name, count in last.rows.items())
    version = f"version {last.version}" if last.version else "nothing to publish"
    yield Fact("well", f"job {last.job}, {version}{f': {rows}' if rows else ''}", last.at)
    if last.left:
        yield Fact(
            "left",
            f"{last.left:,} files or offsets, beyond the bound of one run; the next begins at once",
        )


def _failure_facts(schedule: ScheduleFacts) -> Iterator[Fact]:
    if schedule.failures:
        tried = f"up to {schedule.policy.retry.max} are tried again"
        is_active = bool(schedule.retries or schedule.runs)
        pending = is_active and schedule.status is not ScheduleStatus.HALTED
        yield Fact(
            "failures",
            f"{schedule.failures} in a row; {tried if pending else 'no retry is pending'}",
        )
    first, last = schedule.first_error, schedule.last_error
    errors = (
        {"error": last} if first in (None, last) else {"first error": first, "last error": last}
    )
    for what, error in errors.items():
        if error is not None:
            yield Fact(what, f"{error.code}: {error.text}   unstuck logs {error.job}", error.at)


def backlog_facts(view: ScheduleView) -> Iterator[Fact]:
    """Tell how much its streams have unread, and how far they were read, as a coordinator saw it
    last.
    """
    if view.backlog is not None:
        for address, stream in view.backlog.streams.items():
            yield Fact(
                "backlog", f"{address}: {stream.told(view.backlog.at)}; looked", view.backlog.at
            )
            if stream.position:
                yield Fact("position", f"{address}: {stream.position}")


def _next(view: ScheduleView) -> Iterator[Fact]:
    schedule = view.schedule
    for run in schedule.retries if schedule.status is ScheduleStatus.RETRYING else ():
        yield Fact("next", f"try {run.number} of {tick_text(run.tick)}", run.next_at)
    for tick in view.next_ticks(1):
        yield Fact("next", f"the tick of {tick_text(tick.timestamp())}", tick.timestamp())


def _help(schedule: ScheduleFacts) -> Iterator[str]:
    """The commands that would help."""
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


def backfill_help(schedule: ScheduleFacts) -> tuple[str, ...]:
    """The commands that help with a backfill that is FAILED."""
    fill, name = schedule.backfill, schedule.name
    if fill is None or fill.over or fill.halted is None:
        return ()
    skips = (f"unstuck schedule skip {name} {tick_text(run.tick)}" for run in fill.failed[:1])
    return (
        f"unstuck schedule resume-backfill {name}",
        *skips,
        f"unstuck schedule cancel-backfill {name}",
    )
