"""The commands for one group, ``skip`` and ``rerun``: their legal states and their effect. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Annotated

from unstuck.coordinator.command_table import Answer, Arg, Command, Order, TargetKind
from unstuck.coordinator.commands.job_commands import GROUPS_LEGAL, Commanded, ways_on
from unstuck.coordinator.decide.requests import SKIPPED, closure, open_members, records_of
from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.model.records import GroupRequest, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GROUP_MOVES_REQUESTED, GroupState, Intent
from unstuck.coordinator.spec.problems import listed, suggestion
from unstuck.tasks.protocol.token import split_member

S = GroupState
Group = Annotated[str, Arg("A group, a fork, or one member: 'by_month[3]'.")]


def _states_before(state: GroupState) -> frozenset[GroupState]:
    return frozenset(before for before, after in GROUP_MOVES_REQUESTED if after is state)


@Command(
    "skip",
    TargetKind.GROUP,
    "unstuck skip flights 'by_month[3]'",
    legal=GROUPS_LEGAL,
    legal_groups=_states_before(S.SKIPPED),
    settles=True,
)
def skip(state: JobState, order: Order, group: Group) -> Commanded:
    """Skip a group of a PAUSED, HALTED or RETRYING job.

    The join rules of later groups decide whether these run. Raises: NoSuchGroup.
    """
    refused = _refused(state, group, "skip")
    if refused is not None:
        return refused
    job, ask = state.job, GroupRequest("skip", group)
    name, ordinal = split_member(group)
    if ordinal is not None and group not in state.groups:
        text = (
            f"{group} of job {job.id} has not had its turn yet: skip it then, or skip {name} "
            "as "
            "a whole"
        )
        return Commanded(Answer.REFUSED, job, text)
    members = list(open_members(state, group))
    if ask in job.requests or (
        not members and all(r.reason == SKIPPED for _, r in records_of(state, group))
    ):
        return Commanded(
            Answer.ALREADY, job, f"group {group} of job {job.id} has been skipped before"
        )
    if not members:
        states = " and ".join(sorted({str(record.state) for _, record in records_of(state, group)}))
        text = f"group {group} of job {job.id} is {states}: only what has not ended can be skipped"
        return Commanded(
            Answer.REFUSED, job, f"{text}; `unstuck rerun {job.id} '{group}'` makes it wait again"
        )
    text = f"group {group} of job {job.id} is skipped; what comes after it decides by its join rule"
    return Commanded(Answer.DONE, replace(job, requests=(*job.requests, ask)), text)


@Command(
    "rerun",
    TargetKind.GROUP,
    "unstuck rerun flights clean",
    legal=GROUPS_LEGAL,
    legal_groups=_states_before(S.WAITING),
    settles=True,
)
def rerun(state: JobState, order: Order, group: Group) -> Commanded:
    """Run a group of a PAUSED, HALTED or RETRYING job again, and everything after it.

    Raises: NoSuchGroup.
    """
    refused = _refused(state, group, "rerun")
    if refused is not None:
        return refused
    job, ask = state.job, GroupRequest("rerun", group)
    name, ordinal = split_member(group)
    if ask in job.requests or all(
        record.state is S.WAITING for _, record in records_of(state, group)
    ):
        return Commanded(Answer.ALREADY, job, f"group {group} of job {job.id} is waiting to run")
    names = closure(state, name)
    reset = {*names} if ordinal is None else {group, *names[1:]}
    if left := _stays_canceled(state, reset):
        text = f"{left}: when job {job.id} has ended, {ways_on(job)}"
        return Commanded(Answer.REFUSED, job, text)
    after = [later for later in names[1:] if list(records_of(state, later))]
    also = f", and so will what comes after it: {listed(after)}" if after else ""
    # What comes after it too: with the same inputs as before (another need of its was enough, or
    # this one failed both times) it would take over its own marker of before, and not run.
    # A fresh random word: a number would come round again after a rollback, and with it the markers
    # of a rerun that the store has forgotten.
    reruns = {**job.reruns, **dict.fromkeys(names, order.word)}
    updated = replace(job, requests=(*job.requests, ask), reruns=reruns)
    plans = updated.group_plans(state.plan)
    changed = {each: plans[each] for each in names if each in plans}
    return Commanded(
        Answer.DONE, updated, f"group {group} of job {job.id} will run again{also}", changed
    )


def _stays_canceled(state: JobState, reset: AbstractSet[str]) -> str:
    """Return which group stays CANCELED if the groups ``reset`` run again; empty if none does."""
    for member in state.by_state[S.CANCELED]:
        if not {member, split_member(member)[0]} & reset:
            why = state.record(member).reason
            because = f" ({why.text})" if why else ""
            return f"{member} was canceled{because}, and would stay so"
    return ""


def _refused(state: JobState, group: str, word: str) -> Commanded | None:
    """Return the refusal of a command for a group; None if the command is legal.

    Raises: NoSuchGroup.
    """
    _check_group(state, group)
    text = _job_refusal(state.job, word) or _member_refusal(state, group, word)
    return Commanded(Answer.REFUSED, state.job, text) if text else None


def _check_group(state: JobState, group: str) -> None:
    """Check that the job has the group. Raises: NoSuchGroup."""
    job, groups = state.job, state.plan.groups
    name, ordinal = split_member(group)
    if name not in groups:
        raise NoSuchGroup(f"job {job.id} has no group {name}{suggestion(name, groups)}")
    if ordinal is None:
        return
    count = state.plan.member_count(name, state.collected) or 0
    if groups[name].spec.for_each is None or not 0 <= ordinal < count:
        raise NoSuchGroup(f"group {name} of job {job.id} has {count} members, and none is {group}")


def _job_refusal(job: JobRecord, word: str) -> str:
    """Return why no group of the job can be commanded now; empty if one can."""
    where = f"job {job.id} is {job.status}"
    if job.terminal:
        return f"{where}, and a job that has ended never changes"
    if job.status not in GROUPS_LEGAL:
        return (
            f"{where}: {word} is for a job that is PAUSED, HALTED or RETRYING; `unstuck pause "
            f"{job.id}` first"
        )
    if job.intent not in (Intent.RUN, Intent.PAUSE):
        # A job may be HALTED whatever the user wants of it.
        return (
            f"{where}, but {job.intent.command} was asked for, so none of its groups will run "
            f"again; `unstuck why {job.id}`"
        )
    if job.phase:
        return f"{where} and was publishing, so its outputs may be visible already; resume it"
    return ""


def _member_refusal(state: JobState, group: str, word: str) -> str:
    """Return why a member of a fork cannot be commanded now; empty if it can."""
    job = state.job
    name, ordinal = split_member(group)
    if ordinal is None:
        return ""
    if state.ended_whole(name):
        where = f"job {job.id} is {job.status}"
        return f"{where}, and its group {name} ended as a whole; {word} {name}"
    if word == "skip" and _will_be_forgotten(state, group):
        return (
            f"group {group} of job {job.id} is just being made to run again, as was asked for; "
            "skip it in a moment"
        )
    return ""


def _will_be_forgotten(state: JobState, member: str) -> bool:
    """A rerun that no coordinator has brought about yet will take the member's record away.

    Members are recorded in their order, so none can be skipped ahead of those before it.
    """
    fork, _ = split_member(member)
    for request in state.job.requests:
        name, ordinal = split_member(request.group)
        if (
            request.do == "rerun"
            and fork in closure(state, name)
            and (ordinal is None or name != fork)
        ):
            return True
    return False
