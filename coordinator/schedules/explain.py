"""Explains a schedule by the rules that decide it: where it stands, what comes next, and what would help (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unstuck.coordinator.explain.explanation import Idle
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleIntent, ScheduleRecord, ScheduleStatus, tick_text
from unstuck.coordinator.schedules.decide_schedule import policy_of
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
    """Why a schedule is where it is, since when, and what would help; times are seconds by the clock of Redis."""

    name: str
    status: ScheduleStatus
    what: str
    since: float
    facts: tuple[Fact, ...]
    help: tuple[str, ...]
    backlog: Backlog | None = None


def explain_schedule(view: ScheduleView, idle: Idle, jobs: Mapping[str, str]) -> ScheduleExplanation:
    """Explain a schedule.

    Args:
        idle: for how long no coordinator has looked at anything.
        jobs: of its runs that go on → what that job waits for.
    """
    record, what, advice = view.record, view.waits, list(_help(view.record))
    if idle.seconds > idle.limit and not record.status.terminal:
        what = f"no coordinator has looked for {format_duration(idle.seconds)}, and nothing happens before one does"
        advice.insert(0, "unstuck fleet")
    facts = (*_facts(record, jobs), *backlog_facts(view), *_next(view))
    return ScheduleExplanation(
        name=record.name,
        status=record.status,
        what=what,
        since=record.since,
        facts=facts,
        help=tuple(advice),
        backlog=view.backlog,
    )


def _facts(record: ScheduleRecord, jobs: Mapping[str, str]) -> Iterator[Fact]:
    if record.intent is not ScheduleIntent.RUN:
        why = f": {record.intent_why}" if record.intent_why else ""
        yield Fact("asked", f"{record.intent} by {record.intent_by or 'somebody'}{why}", record.intent_at)
    if (well := record.last_success) is None:
        yield Fact("well", "no run has ended well yet")
    else:
        rows = ", ".join(f"{name} {count:,} rows" for name, count in well.rows.items())
        version = f"version {well.version}" if well.version else "nothing to publish"
        yield Fact("well", f"job {well.job}, {version}{f': {rows}' if rows else ''}", well.at)
        if well.left:
            yield Fact("left", f"{well.left:,} files or offsets, beyond the bound of one run; the next begins at once")
    if record.failures:
        tried = f"up to {policy_of(record.policy).retry.max} are tried again"
        pending = record.retries or record.runs
        yield Fact("failures", f"{record.failures} in a row; {tried if pending else 'no retry is pending'}")
    first, last = record.first_error, record.last_error
    errors = {"error": last} if first in (None, last) else {"first error": first, "last error": last}
    for what, error in errors.items():
        if error is not None:
            yield Fact(what, f"{error.code}: {error.text}   unstuck logs {error.job}", error.at)
    for run in record.going_on:
        if run.trouble is not None:
            yield Fact("trouble", f"{run.trouble.code}: {run.trouble.text}; tried {run.tries} times", run.at)
        elif run.job:
            why = f": {jobs[run.job]}" if jobs.get(run.job) else ""
            yield Fact("running", f"job {run.job}, of {tick_text(run.tick)}{why}", run.at)
    if record.quiet is not None:
        yield Fact("quiet", f"nothing new at {record.quiet.count:,} ticks; looked last", record.quiet.looked_at)
    if record.backfill is not None and not record.backfill.over:
        yield Fact("backfill", f"{record.backfill.status}: {record.backfill.told}")


def backlog_facts(view: ScheduleView) -> Iterator[Fact]:
    """Tell how much its streams have unread, and how far they were read, as a coordinator saw it last."""
    if view.backlog is not None:
        for address, stream in view.backlog.streams.items():
            yield Fact("backlog", f"{address}: {stream.told(view.backlog.at)}; looked", view.backlog.at)
            if stream.position:
                yield Fact("position", f"{address}: {stream.position}")


def _next(view: ScheduleView) -> Iterator[Fact]:
    record = view.record
    for run in record.retries if record.status is ScheduleStatus.RETRYING else ():
        yield Fact("next", f"try {run.number} of {tick_text(run.tick)}", run.next_at)
    for tick in view.next_ticks(1):
        yield Fact("next", f"the tick of {tick_text(tick.timestamp())}", tick.timestamp())


def _help(record: ScheduleRecord) -> Iterator[str]:
    """The commands that would help."""
    name = record.name
    match record.status:
        case ScheduleStatus.PAUSED:
            yield f"unstuck schedule resume {name}"
        case ScheduleStatus.HALTED:
            yield f"unstuck schedule set SPEC   # with the mended spec of {name}: it is tried at once"
            yield f"unstuck schedule resume {name}"
        case ScheduleStatus.STOPPED | ScheduleStatus.FINISHED:
            yield f"unstuck schedule remove {name}   # and set it again"
        case ScheduleStatus.RETRYING:
            yield f"unstuck schedule run {name}   # try at once"
        case _ if record.failures:
            yield f"unstuck schedule run {name}   # another try"
    if record.last_error is not None:
        yield f"unstuck logs {record.last_error.job}"
