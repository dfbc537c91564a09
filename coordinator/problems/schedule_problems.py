"""Problems of a schedule (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from unstuck.coordinator.problems.problem import Limits, Problem, ProblemCode
from unstuck.coordinator.schedules.explain import backfill_help
from unstuck.coordinator.schedules.schedule_state import ScheduleState

C = ProblemCode


def _problem(
    code: ProblemCode, view: ScheduleState, text: str, since: float, remedy: str = ""
) -> Problem:
    name = view.schedule.name
    return Problem(code, "schedule", name, text, since, remedy or f"unstuck schedule why {name}")


def _halted(view: ScheduleState, limits: Limits) -> Problem | None:
    schedule = view.schedule
    if schedule.halted is None:
        return None
    remedy = f"unstuck schedule resume {schedule.name}"
    return _problem(C.HALTED, view, schedule.halted.text, schedule.since, remedy)


def _failing(view: ScheduleState, limits: Limits) -> Problem | None:
    schedule = view.schedule
    if not schedule.failures or schedule.last_error is None:
        return None
    text = f"{schedule.failures:,} in a row failed: {schedule.last_error.text}"
    first = schedule.first_error or schedule.last_error
    return _problem(C.FAILED, view, text, first.at)


def _retrying(view: ScheduleState, limits: Limits) -> Problem | None:
    schedule = view.schedule
    if schedule.trouble is None:
        return None
    return _problem(C.RETRYING, view, schedule.trouble.text, schedule.since)


def _late(view: ScheduleState, limits: Limits) -> Problem | None:
    since = [at for key, at in view.schedule.problems.items() if key.startswith("late")]
    if not since:
        return None
    text = f"no run has ended well by its deadline; {view.waits}"
    return _problem(C.LATE, view, text, since[0])


def _overdue(view: ScheduleState, limits: Limits) -> Problem | None:
    if view.due is None or view.at - view.due <= limits.overdue:
        return None
    text = "no coordinator has decided it, though its time has come"
    return _problem(C.OVERDUE, view, text, view.due, "unstuck fleet")


def _behind(view: ScheduleState, limits: Limits) -> Problem | None:
    since = unread_since(view)
    if view.backlog is None or not since or view.at - since <= limits.behind:
        return None
    streams, at = view.backlog.streams.items(), view.backlog.at
    text = "; ".join(f"{name}: {stream.describe(at)}" for name, stream in streams)
    return _problem(C.BEHIND, view, text, since)


def unread_since(view: ScheduleState) -> float:
    """Return since when the streams have unread input; 0 if a later run may have read all of it."""
    backlog, success = view.backlog, view.schedule.last_success
    if backlog is None:
        return 0.0
    read = success is not None and backlog.at <= success.at and not success.left
    return 0.0 if read else backlog.since


# The worst first.
RULES: tuple[Callable[[ScheduleState, Limits], Problem | None], ...] = (
    _halted,
    _failing,
    _retrying,
    _late,
    _overdue,
    _behind,
)


def _backfill(view: ScheduleState) -> Iterator[Problem]:
    backfill = view.schedule.backfill
    if backfill is not None and backfill.halted is not None and not backfill.over:
        text = f"{backfill.progress}; {backfill.halted.text}"
        yield _problem(C.BACKFILL_FAILED, view, text, backfill.at, backfill_help(view.schedule)[0])


def worst_problems(views: Iterable[ScheduleState], limits: Limits) -> Iterator[Problem]:
    """Yield the worst problem of each schedule, and that of its backfill."""
    for view in views:
        problems = (rule(view, limits) for rule in RULES)
        worst = next((problem for problem in problems if problem is not None), None)
        if worst is not None and not view.schedule.status.terminal:
            yield worst
        yield from _backfill(view)
