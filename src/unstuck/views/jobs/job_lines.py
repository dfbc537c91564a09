"""The groups of a job as lines for ``show``, ``watch`` and the page, with forks folded (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from unstuck.coordinator.explain.stack_words import stands_at
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.read_model.group import GroupInfo, Member
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import format_duration
from unstuck.views.words import count_of, first_line, one_line

MEMBERS = 8  # of one fork that are shown
ACTIVE = (GroupState.RUNNING, GroupState.CANCELING, GroupState.BACKOFF, GroupState.QUEUED)
_SHOWN = (GroupState.RUNNING, GroupState.CANCELING, GroupState.BACKOFF, GroupState.FAILED)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree of a job: a group, a fork, or a member of a fork.

    Attributes:
        done, total: position of the progress bar; no bar if ``total`` is 0.
        elapsed: seconds; None before the group started.
        where: host and process that run it, or ran it.
        member: whether it is a member of a fork.
        id: of a member of a fork, whose name also has its values.
    """

    name: str
    state: str
    detail: str = ""
    done: float = 0
    total: float = 0
    elapsed: float | None = None
    where: str = ""
    member: bool = False
    id: str = ""


def lines_of(view: JobInfo, at: float) -> list[Line]:
    """Return all lines, in the order of the plan.

    Below the line of a fork are the lines of its active and failed members.

    Args:
        at: now, in seconds by the clock of the view; may be later than the view.
    """
    lines: list[Line] = []
    for group in view.groups:
        if _is_fork(group):
            lines.append(_fork_line(view, group, at))
            lines.extend(_member_lines(view, group, at))
        elif group.members:
            lines.append(_group_line(view, group.members[0], at))
        else:
            lines.append(
                Line(group.name, GroupState.WAITING, one_line(view.why_line(group.name, at)))
            )
    return lines


def why(job: JobInfo, at: float) -> str:
    """Return why the job ended, or what it waits for; empty if it is FINISHED."""
    if job.terminal:
        return (
            first_line(job.reason.text)
            if job.reason is not None and job.status is not Status.FINISHED
            else ""
        )
    return one_line(job.why_line(job.id, at))


def elapsed_of(member: Member, at: float) -> float | None:
    """Return the seconds that the newest attempt of a group has run, or ran."""
    if member.state in (GroupState.RUNNING, GroupState.CANCELING):
        return max(0.0, at - (member.claimed_at or member.started_at or member.since))
    if member.state.terminal and member.started_at:
        return max(0.0, member.since - member.started_at)
    return None


def _is_fork(group: GroupInfo) -> bool:
    """Return whether it has members. A fork may end as a whole: skipped, or without values."""
    return group.forked and not any(member.id == group.name for member in group.members)


# A fork is in the first of these states that a member is in.
_STATE_OF_FORK = (GroupState.FAILED, *ACTIVE, GroupState.CANCELED)


def _fork_line(view: JobInfo, group: GroupInfo, at: float) -> Line:
    if not group.expanded:
        shown = one_line(view.why_line(group.name, at))
        return Line(group.name, GroupState.WAITING, shown or "its members are not known yet")
    counts = {GroupState(state): n for state, n in group.states.items() if n}
    over = sum(n for state, n in counts.items() if state.terminal) == group.total
    otherwise = GroupState.SUCCEEDED if over else GroupState.WAITING
    counted = [state for state in (*_STATE_OF_FORK, GroupState.SKIPPED) if state in counts]
    # Active members have lines of their own; the line of the fork explains the others.
    active = any(state in counts for state in _SHOWN)
    waits = view.why_line(group.name, at) if active else view.why_group(group, at)
    numbers = ", ".join(f"{counts[state]} {state.lower()}" for state in counted)
    return Line(
        group.name,
        next((state for state in _STATE_OF_FORK if state in counts), otherwise),
        _joined(numbers, one_line(waits), *_made(group.members)),
        group.done,
        group.total,
        _elapsed_of_fork(group, at, over),
    )


def _elapsed_of_fork(group: GroupInfo, at: float, over: bool) -> float | None:
    """Return the seconds from the first start of a member to its last end, or to ``at``."""
    starts = [member.started_at for member in group.members if member.started_at]
    if not starts:
        return None
    end = max(member.since for member in group.members) if over else at
    return max(0.0, end - min(starts))


def _member_lines(view: JobInfo, group: GroupInfo, at: float) -> list[Line]:
    notable = [member for state in _SHOWN for member in group.members if member.state is state]
    lines = [member_line(view, group, member, at) for member in notable[:MEMBERS]]
    if len(notable) > MEMBERS:
        lines.append(Line(f"… {len(notable) - MEMBERS} more", "", "at work or failed", member=True))
    return lines


def member_line(view: JobInfo, group: GroupInfo, member: Member, at: float) -> Line:
    """Return the line of a member of a fork, with its values."""
    values = {group.param: member.value} if group.param else member.value
    named = values if isinstance(values, dict) else {}
    label = " ".join([member.id, *starmap(_valued, named.items())])
    return replace(_group_line(view, member, at), name=one_line(label), member=True, id=member.id)


def _valued(param: str, value: Any) -> str:
    """Return the value of a fork parameter; of a mapping, its parts as SQL names them."""
    if isinstance(value, dict):
        return " ".join(f"{param}.{name}={part}" for name, part in value.items())
    return f"{param}={value}"


def _group_line(view: JobInfo, member: Member, at: float) -> Line:
    state, reason = member.state, _reason(view, member)
    if state in (GroupState.RUNNING, GroupState.CANCELING):
        return _running_line(view, member, reason, at)
    waits = one_line(view.why_line(member.id, at)) or reason
    match state:
        case GroupState.QUEUED:
            since = format_duration(max(0.0, at - member.since))
            detail = _joined(waits, f"for {since}", _tried(member))
        case GroupState.BACKOFF | GroupState.WAITING:
            detail = waits
        case GroupState.SUCCEEDED:
            detail = _joined(*_made([member]), reason)
        case _:
            detail = reason
    where = member.worker if state.terminal else ""
    return Line(member.id, state, detail, elapsed=elapsed_of(member, at), where=where)


def _running_line(view: JobInfo, member: Member, reason: str, at: float) -> Line:
    progress = member.progress
    step = f"step {progress['step']}/{progress['steps']}" if "step" in progress else ""
    label = one_line(str(progress.get("label", "")))
    explanation = view.explanations.get(member.id)
    position = ""
    if explanation is not None and explanation.stack is not None:
        position = one_line(stands_at(explanation.stack, at, brief=True))
    named = _joined(step, label, between=" ")
    detail = _joined(named, _rows(progress.get("rows")), position, _tried(member))
    return Line(
        member.id,
        member.state,
        # The worker has a column of its own; a wait is shown only without progress.
        detail or one_line(view.why_line(member.id, at)) or reason,
        progress.get("done") or 0,
        progress.get("total") or 0,
        elapsed_of(member, at),
        member.worker,
    )


def _reason(view: JobInfo, member: Member) -> str:
    """Return why a group is in its state, without the error that the reason of the job has."""
    if member.reason is None:
        return ""
    text, error = member.reason.text, member.last_error
    if error is not None and view.reason is not None and error.text in view.reason.text:
        text = text.replace(error.text, "").strip(" ()")
    return first_line(text)


def _tried(member: Member) -> str:
    """Return the number of the attempt after an error; empty without one."""
    error = member.last_error
    return "" if error is None else f"attempt {member.attempt} after: {first_line(error.text)}"


def _made(members: Sequence[Member]) -> tuple[str, str]:
    """Return the good rows of all outputs, and the rejected ones by rule.

    A row that violates two rules counts for both.
    """
    rows = sum(sum(member.rows.values()) for member in members)
    checked = [quality for member in members for quality in member.quality.values()]
    rejected = sum(quality.rejected for quality in checked)
    rules: Counter[str] = Counter()
    for quality in checked:
        rules.update(quality.rules)
    broken = ", ".join(f"{name} {count:,}" for name, count in rules.items() if count)
    return _rows(rows - rejected), f"{rejected:,} rejected ({broken})" if rejected else ""


def _rows(count: int | None) -> str:
    return count_of(count, "row") if count else ""


def _joined(*parts: str, between: str = " · ") -> str:
    return between.join(part for part in parts if part)
