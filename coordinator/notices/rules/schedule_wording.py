"""The text of a notice of a schedule: the sentence of ``schedule why``, and the next step. Pure."""

from __future__ import annotations

from datetime import datetime

from unstuck.coordinator.explain.explanation import AT_WORK, Event
from unstuck.coordinator.model.schedule_record import (
    Backfill,
    RunFailure,
    RunSuccess,
    ScheduleRecord,
    ScheduleStatus,
)
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.notices.rules.job_wording import MAX_TEXT, Words, event_text
from unstuck.coordinator.notices.rules.late_deadlines import Deadlines, zone_name
from unstuck.coordinator.schedules.explain import backfill_help, explain_schedule
from unstuck.coordinator.schedules.schedule_state import ScheduleState
from unstuck.coordinator.spec.notify_spec import Late
from unstuck.coordinator.spec.schedule_spec import zone_of


def words(
    view: ScheduleState,
    event: str,
    *,
    job: str = "",
    of_backfill: bool = False,
    late: Late | None = None,
    deadline: Deadlines | None = None,
    zone: str = "UTC",
) -> Words:
    """Return the text for ``event``; ``read`` means that a backlog has ended.

    Args:
        job: job of the reported run; ``of_backfill``: whether the notice reports a backfill.
        late, deadline: rule and time of an event ``late``; ``zone``: time zone if ``late`` names
            none.
    """
    schedule, explained = view.schedule, explain_schedule(view, AT_WORK, {})
    if of_backfill and schedule.backfill is not None:
        return _backfill_words(schedule, schedule.backfill)
    if event == "late" and late is not None and deadline is not None:
        lead = f"{late_text(late, deadline, zone)}; {_last_success(schedule)}; {_holds(schedule)}"
    else:
        lead = _lead(view, event, job)
    text = f"{lead}{explained.what}"
    first = schedule.first_error
    comes = next((fact for fact in explained.facts if fact.what == "next"), None)
    return Words(
        text[:MAX_TEXT],
        "" if first is None else f"{first.code}: {first.text}"[:MAX_TEXT],
        "" if comes is None else event_text(Event(what=comes.text, at=comes.at)),
        (f"unstuck schedule why {schedule.name}", *explained.help),
        job or _job_of(schedule, event),
    )


def _job_of(schedule: ScheduleRecord, event: str) -> str:
    """Return the job of ``event``: of the last failed or successful run, or the running one."""
    latest: RunFailure | RunSuccess | None = None
    if event == "failed":
        latest = schedule.last_error
    elif event == "recovered":
        latest = schedule.last_success
    if latest is not None:
        return latest.job
    return next((run.job for run in schedule.going_on if run.job), "")


def _backfill_words(schedule: ScheduleRecord, backfill: Backfill) -> Words:
    """Return the words for a problem of the backfill."""
    error = backfill.last_error
    why = f": {backfill.halted.text}" if backfill.halted is not None else ""
    return Words(
        f"its backfill is {backfill.status}, {backfill.progress}{why}"[:MAX_TEXT],
        "" if error is None else f"{error.code}: {error.text}"[:MAX_TEXT],
        "",
        (f"unstuck schedule show {schedule.name}", *backfill_help(schedule)),
        "" if error is None else error.job,
    )


def _lead(view: ScheduleState, event: str, job: str) -> str:
    """Return what comes before the explanation of the schedule; ``job``: as for `words`."""
    schedule = view.schedule
    if event == "failed" and schedule.last_error is not None:
        error = schedule.last_error
        return f"its run of {tick_text(error.tick)} failed: {error.text}; "
    if event == "retrying_for" and schedule.failures > 1:
        return f"{schedule.failures} runs failed in a row; "
    if event == "behind" and view.backlog is not None:
        streams, at = view.backlog.streams.items(), view.backlog.at
        return "; ".join(f"{name}: {stream.describe(at)}" for name, stream in streams) + "; "
    if event == "read":
        return "nothing unread waits that long any more; "
    if event in ("finished", "recovered") and schedule.last_success is not None:
        return f"{_well(schedule.last_success, job)}; "
    return ""


def _well(last: RunSuccess, job: str) -> str:
    if job not in ("", last.job):
        return f"job {job} has ended well"
    version = f", version {last.version}" if last.version else ""
    return f"job {last.job} has ended well{version}"


def late_text(late: Late, deadline: Deadlines, zone: str) -> str:
    """Return a text such as ``no run has ended well by 06:00 of 2026-11-27 (Europe/Berlin)``."""
    name = zone_name(late, zone)
    day = datetime.fromtimestamp(deadline.at, zone_of(name))
    return f"no run has ended well by {late.hour:02}:{late.minute:02} of {day:%Y-%m-%d} ({name})"


def _last_success(schedule: ScheduleRecord) -> str:
    well = schedule.last_success
    return (
        "none has yet" if well is None else f"the last that did was that of {tick_text(well.tick)}"
    )


def _holds(schedule: ScheduleRecord) -> str:
    """Return since when a person or the system stops it; empty if nothing does."""
    if schedule.status is ScheduleStatus.PAUSED:
        return f"since {tick_text(int(schedule.intent_at))} "
    return "it is HALTED: " if schedule.status is ScheduleStatus.HALTED else ""
