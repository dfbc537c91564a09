"""Applies users' requests for single groups, before anything else in a decision. Pure.

``skip`` and ``rerun`` are commands of the user; ``restart`` follows from an ``alter``. The command
stores the request on the job's record, where no report of a worker changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.live_attempts import start
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.checks.fork_checks import values_reader
from unstuck.tasks.protocol.token import split_member

S = GroupState
SKIPPED = Reason("USER_SKIPPED", "the user skipped it")
RERUN = Reason("USER_RERUN", "the user asked for it, or for a group before it, to run again")
ALTERED = Reason(
    "ALTERED", "its attempt was ended because the job was altered; the next one uses the new values"
)


def apply_requests(draft: Draft) -> bool:
    """Apply the requests that fit into one commit. Return whether the rest needs another load."""
    while draft.job.requests and not draft.commit_is_full() and not draft.decision.reload:
        request = draft.job.requests[0]
        {"skip": _skip, "rerun": _rerun, "restart": _restart}[request.do](draft, request.group)
        if draft.decision.full:
            break  # perhaps there is more to do; another look costs little
        draft.job = replace(draft.job, requests=draft.job.requests[1:])
    draft.decision.more |= bool(draft.job.requests) or draft.decision.reload
    return draft.decision.reload


def _skip(draft: Draft, group: str) -> None:
    for each in draft.while_room(list(open_members(draft.state, group))):
        draft.end_attempt(each, S.SKIPPED, SKIPPED, requested=True)


def _rerun(draft: Draft, group: str) -> None:
    """Reset the group and every group after it, as if they had never run.

    Their records go, and with them frozen inputs and collected fork values: a group that runs again
    may read other outputs and have other members. The record of a single member stays, because the
    other members stay.
    """
    name, ordinal = split_member(group)
    names = closure(draft.state, name)
    for each in reversed(names):  # never leaves a group ahead of what it needs
        if ordinal is not None and each == name:
            record = draft.state.record(group)
            if record.state is not S.WAITING and not draft.commit_is_full():
                draft.drop_attempt(group)
                draft.move(
                    group,
                    GroupRecord(state=S.WAITING, epoch=record.epoch, reason=RERUN),
                    requested=True,
                )
            return
        gone = [group_id for group_id, _ in records_of(draft.state, each)]
        for group_id in gone:
            if draft.commit_is_full():
                return
            draft.forget(group_id)
        draft.unfreeze(each, collected=_made_by(draft.state, each, names))
        if gone:
            draft.tell(S.WAITING, group=each, code=RERUN.code, text=RERUN.text)


def _made_by(state: JobState, fork: str, names: list[str]) -> bool:
    """Return whether one of ``names``, which will make new values, made those of ``fork``."""
    spec = state.plan.groups[fork].spec
    source = spec.fork_from
    return source is not None and any(
        fork in dict(state.plan.groups[name].feeds)
        and (
            name == values_reader(spec)
            or source.output == name
            or source.output in state.record(name).rows
        )
        for name in names
    )


def _restart(draft: Draft, group_id: str) -> None:
    """End the attempt of a recovering group that has values from before an alter.

    The next attempt has the new values. An attempt that nobody has claimed stays, since its runner
    will read the new plan.
    """
    record, attempt = draft.state.record(group_id), draft.state.attempts.get(group_id)
    if record.state is S.QUEUED and attempt is not None and attempt.claimant:
        start(draft, group_id, record, attempt)
        if draft.commit_is_full():
            return
        record = draft.state.record(group_id)
    if (
        record.state is not S.RUNNING
        or not record.recovering
        or record.revision >= draft.job.revision
    ):
        return
    if attempt is not None and attempt.outcome is not None:
        return  # it has ended, with the values that it had
    draft.drop_attempt(group_id)
    again = replace(record, state=S.BACKOFF, next_at=draft.env.now, reason=ALTERED)
    draft.move(group_id, again, next_at=again.next_at)


def closure(state: JobState, name: str) -> list[str]:
    """Return ``name`` and every planned group after it, in the order of the plan."""
    affected = {name}
    for other, planned in state.plan.groups.items():  # needs come first
        if affected.intersection(planned.spec.needs):
            affected.add(other)
    return [other for other in state.plan.groups if other in affected]


def records_of(state: JobState, group: str) -> Iterator[tuple[str, GroupRecord]]:
    """Return the records of a group, of a fork's members, or of one member."""
    name, ordinal = split_member(group)
    ids = [group] if ordinal is not None else list(dict.fromkeys([name, *state.members(name)]))
    return ((each, state.groups[each]) for each in ids if each in state.groups)


def open_members(state: JobState, group: str) -> Iterator[str]:
    """Yield the members of a group that have not ended, recorded or not."""
    name, ordinal = split_member(group)
    if ordinal is not None:
        ids: Iterator[str] = iter([group])
    elif not state.census[name].total():
        ids = iter([name])  # nothing of it has begun: it ends as a whole
    else:
        ids = state.members(name)
    return (each for each in ids if not state.record(each).state.terminal)
