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
    """One line.

    Attributes:
        done, total: of the progress bar; there is none if ``total`` is 0.
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


def _fork_line(view: JobInfo, group: GroupInfo, at: float) -> Line:
    if not group.expanded:
        shown = one_line(view.why_line(group.name, at))
        return Line(group.name, GroupState.WAITING, shown or "its members are not known yet")
    counts = {GroupState(state): n for state, n in group.states.items() if n}
    over = sum(n for state, n in counts.items() if state.terminal) == group.total
    order = (GroupState.FAILED, *ACTIVE, GroupState.CANCELED, GroupState.SKIPPED)
    ended = GroupState.SUCCEEDED if over else GroupState.WAITING
    state = next((s for s in order if counts.get(s) and s is not GroupState.SKIPPED), ended)
    counted = [f"{counts[state]} {state.lower()}" for state in order if counts.get(state)]
    # Active members have lines of their own; the line of the fork is about the others.
    idle = not any(counts.get(state) for state in _SHOWN)
    detail = _joined(
        ", ".join(counted),
        one_line(view.why_group(group, at) if idle else view.why_line(group.name, at)),
    )
    starts = [m.started_at for m in group.members if m.started_at]
    end = max((m.since for m in group.members), default=at) if over else at
    return Line(
        group.name,
        state,
        _joined(detail, *_made(group.members)),
        group.done,
        group.total,
        max(0.0, end - min(starts)) if starts else None,
    )


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
    progress, state = member.progress, member.state
    reason = member.reason.text if member.reason else ""
    if member.last_error and view.reason and member.last_error.text in view.reason.text:
        # The reason of the job already has this error.
        reason = reason.replace(member.last_error.text, "").strip(" ()")
    reason = first_line(reason)
    waits = one_line(view.why_line(member.id, at)) or reason
    again = (
        f"attempt {member.attempt} after: {first_line(member.last_error.text)}"
        if member.last_error
        else ""
    )
    if state in (GroupState.RUNNING, GroupState.CANCELING):
        step = f"step {progress['step']}/{progress['steps']}" if "step" in progress else ""
        label = one_line(str(progress.get("label", "")))
        stack = view.explanations[member.id].stack if member.id in view.explanations else None
        position = "" if stack is None else one_line(stands_at(stack, at, brief=True))
        return Line(
            member.id,
            state,
            # The worker has a column of its own; what a group waits for is shown only without
            # progress.
            _joined(_joined(step, label, between=" "), _rows(progress.get("rows")), position, again)
            or waits,
            progress.get("done") or 0,
            progress.get("total") or 0,
            elapsed_of(member, at),
            member.worker,
        )
    detail = reason
    if state is GroupState.QUEUED:
        detail = _joined(waits, f"for {format_duration(max(0.0, at - member.since))}", again)
    elif state in (GroupState.BACKOFF, GroupState.WAITING):
        detail = waits
    elif state is GroupState.SUCCEEDED:
        detail = _joined(*_made([member]), reason)
    where = member.worker if state.terminal else ""
    return Line(member.id, state, detail, elapsed=elapsed_of(member, at), where=where)


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
