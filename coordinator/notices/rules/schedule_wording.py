"""The words of a notice of a schedule (pure): what ``schedule why`` says, what comes next, and what
helps.
"""

from __future__ import annotations

from datetime import datetime

from unstuck.coordinator.explain.explanation import AT_WORK, Event
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.notices.rules.job_wording import MAX_TEXT, Words, event_text
from unstuck.coordinator.notices.rules.late_deadlines import Deadlines, zone_name
from unstuck.coordinator.schedules.explain import backfill_help, explain_schedule
from unstuck.coordinator.schedules.schedule_facts import ScheduleFacts
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.spec.notify_spec import Late
from unstuck.coordinator.spec.schedule_spec import zone_of


def words(
    view: ScheduleView,
    event: str,
    *,
    job: str = "",
    of_backfill: bool = False,
    late: Late | None = None,
    deadline: Deadlines | None = None,
    zone: str = "UTC",
) -> Words:
    """The words for ``event``, or for ``read``, which is the end of a backlog, as the schedule
    stands.

    Args:
        job: that of the run of which it is told; ``of_backfill``: its backfill is what is told of.
        late, deadline: of an event ``late``; ``zone``: where ``late`` names none.
    """
    schedule, explained = view.schedule, explain_schedule(view, AT_WORK, {})
    text, backfill = explained.what, schedule.backfill
    if of_backfill and backfill is not None:
        error, why = (
            backfill.last_error,
            f": {backfill.halted.text}" if backfill.halted is not None else "",
        )
        resume = backfill_help(schedule)
        return Words(
            f"its backfill is {backfill.status}, {backfill.progress}{why}"[:MAX_TEXT],
            "" if error is None else f"{error.code}: {error.text}"[:MAX_TEXT],
            "",
            (f"unstuck schedule show {schedule.name}", *resume),
            "" if error is None else error.job,
        )
    if event == "late" and late is not None and deadline is not None:
        text = (
            f"{late_text(late, deadline, zone)}; {_last_success(schedule)}; "
            f"{_holds(schedule)}{text}"
        )
    elif event == "failed" and schedule.last_error is not None:
        text = (
            f"its run of {tick_text(schedule.last_error.tick)} failed: "
            f"{schedule.last_error.text}; {text}"
        )
    elif event == "retrying_for":
        text = (
            f"{schedule.failures} runs failed in a row; {text}" if schedule.failures > 1 else text
        )
    elif event == "behind" and view.backlog is not None:
        backlog = "; ".join(
            f"{name}: {stream.told(view.backlog.at)}"
            for name, stream in view.backlog.streams.items()
        )
        text = f"{backlog}; {text}"
    elif event == "read":
        text = f"nothing unread waits that long any more; {text}"
    elif event in ("finished", "recovered") and (well := schedule.last_success) is not None:
        version = f", version {well.version}" if well.version else ""
        done = (
            f"job {well.job} has ended well{version}"
            if job in ("", well.job)
            else f"job {job} has ended well"
        )
        text = f"{done}; {text}"
    first = schedule.first_error
    comes = next((fact for fact in explained.facts if fact.what == "next"), None)
    latest = (
        schedule.last_error
        if event == "failed"
        else schedule.last_success
        if event == "recovered"
        else None
    )
    running = next((run.job for run in schedule.going_on if run.job), "")
    return Words(
        text[:MAX_TEXT],
        "" if first is None else f"{first.code}: {first.text}"[:MAX_TEXT],
        "" if comes is None else event_text(Event(what=comes.text, at=comes.at)),
        (f"unstuck schedule why {schedule.name}", *explained.help),
        job or (latest.job if latest is not None else running),
    )


def late_text(late: Late, deadline: Deadlines, zone: str) -> str:
    """Say by when no run had ended well: ``no run has ended well by 06:00 of 2026-11-27
    (Europe/Berlin)``.
    """
    name = zone_name(late, zone)
    day = datetime.fromtimestamp(deadline.at, zone_of(name))
    return f"no run has ended well by {late.hour:02}:{late.minute:02} of {day:%Y-%m-%d} ({name})"


def _last_success(schedule: ScheduleFacts) -> str:
    well = schedule.last_success
    return (
        "none has yet" if well is None else f"the last that did was that of {tick_text(well.tick)}"
    )


def _holds(schedule: ScheduleFacts) -> str:
    """Since when a person or the system holds it up; empty if nobody does."""
    if schedule.status is ScheduleStatus.PAUSED:
        return f"since {tick_text(int(schedule.intent_at))} "
    return "it is HALTED: " if schedule.status is ScheduleStatus.HALTED else ""
