"""Asking: what a user may ask of one group, when that is legal, and how a decision brings it about. Pure.

``skip`` and ``rerun`` are for the operator who knows better; ``renew`` comes with an ``alter``. Each is noted on the
job's record by the command, and is the first thing that the next decision does: what a worker says meanwhile changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from unstuck.coordinator.decide.deadlines import PUBLISHING
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intake import start
from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.model.commanded import Answer, Commanded
from unstuck.coordinator.model.records import Ask, GroupRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.coordinator.spec.problems import listed, suggestion
from unstuck.tasks.protocol.token import split_member

S = GroupState
SKIPPED = Reason("USER_SKIPPED", "the user skipped it")
RERUN = Reason("USER_RERUN", "the user asked for it, or for a group before it, to run again")
ALTERED = Reason("ALTERED", "its attempt was ended because the job was altered; the next one uses the new values")
LEGAL = (Status.PAUSED, Status.RETRYING)


# ---- the command ---------------------------------------------------------------------------------------------------


def skip(state: JobState, group: str) -> Commanded:
    """The job after ``group`` (a group, a fork or one member) was asked to be skipped.

    Raises: NoSuchGroup.
    """
    refused = _refused(state, group, "skip")
    if refused is not None:
        return refused
    job, ask = state.job, Ask("skip", group)
    name, ordinal = split_member(group)
    if ordinal is not None and group not in state.groups:
        text = f"{group} of job {job.id} has not had its turn yet: skip it then, or skip {name} as a whole"
        return Commanded(Answer.REFUSED, job, text)
    members = list(_open(state, group))
    if ask in job.asks or (not members and all(r.reason == SKIPPED for _, r in _records(state, group))):
        return Commanded(Answer.ALREADY, job, f"group {group} of job {job.id} has been skipped before")
    if not members:
        stands = " and ".join(sorted({str(record.state) for _, record in _records(state, group)}))
        text = f"group {group} of job {job.id} is {stands}: only what has not ended can be skipped"
        return Commanded(Answer.REFUSED, job, f"{text}; `unstuck rerun {job.id} '{group}'` makes it wait again")
    text = f"group {group} of job {job.id} is skipped; what comes after it decides by its join rule"
    return Commanded(Answer.DONE, replace(job, asks=(*job.asks, ask)), text)


def rerun(state: JobState, group: str, word: str) -> Commanded:
    """The job after ``group`` and everything after it was asked to run again.

    Args:
        word: a fresh random word. A number would come round again after a rollback, and with it the markers of a rerun
            that the store has forgotten.

    Raises: NoSuchGroup.
    """
    refused = _refused(state, group, "rerun")
    if refused is not None:
        return refused
    job, ask = state.job, Ask("rerun", group)
    name, _ = split_member(group)
    if ask in job.asks or all(record.state is S.WAITING for _, record in _records(state, group)):
        return Commanded(Answer.ALREADY, job, f"group {group} of job {job.id} is waiting to run")
    names = closure(state, name)
    after = [later for later in names[1:] if list(_records(state, later))]
    also = f", and so will what comes after it: {listed(after)}" if after else ""
    # What comes after it too: with the same inputs as before (another need of its was enough, or this one failed both
    # times) it would take over its own marker of before, and not run.
    reruns = {**job.reruns, **dict.fromkeys(names, word)}
    asked = replace(job, asks=(*job.asks, ask), reruns=reruns)
    plans = state.plan.group_plans(job.warehouse, job.warehouse_id, reruns, job.adopts)
    changed = {each: plans[each] for each in names if each in plans}
    return Commanded(Answer.DONE, asked, f"group {group} of job {job.id} will run again{also}", changed)


def _refused(state: JobState, group: str, word: str) -> Commanded | None:
    job = state.job
    name, ordinal = split_member(group)
    if name not in state.plan.groups:
        raise NoSuchGroup(f"job {job.id} has no group {name}{suggestion(name, state.plan.groups)}")
    count = state.plan.member_count(name, state.collected) or 0
    if ordinal is not None and (state.plan.groups[name].spec.for_each is None or not 0 <= ordinal < count):
        raise NoSuchGroup(f"group {name} of job {job.id} has {count} members, and none is {group}")
    where = f"job {job.id} is {job.status}"
    if job.terminal:
        text = f"{where}, and a job that has ended never changes"
    elif job.status not in LEGAL:
        text = f"{where}: {word} is for a job that is PAUSED or RETRYING; `unstuck pause {job.id}` first"
    elif job.intent not in (Intent.RUN, Intent.PAUSE):
        # A job that was halted is shown as PAUSED whatever the user wants of it.
        asked = job.intent.command
        text = f"{where}, but {asked} was asked for, so none of its groups will run again; `unstuck why {job.id}`"
    elif job.phase == PUBLISHING:
        text = f"{where} and was publishing, so its outputs may be visible already; resume it"
    elif ordinal is not None and state.ended_whole(name):
        text = f"{where}, and its group {name} ended as a whole; {word} {name}"
    elif word == "skip" and ordinal is not None and _will_be_forgotten(state, group):
        text = f"group {name} of job {job.id} is just being made to run again, as was asked for; skip it in a moment"
    else:
        return None
    return Commanded(Answer.REFUSED, job, text)


def _will_be_forgotten(state: JobState, member: str) -> bool:
    """A rerun that no coordinator has brought about yet will take the member's record away.

    Members are recorded in their order, so none can be skipped ahead of those before it.
    """
    fork, _ = split_member(member)
    for ask in state.job.asks:
        name, ordinal = split_member(ask.group)
        if ask.do == "rerun" and fork in closure(state, name) and (ordinal is None or name != fork):
            return True
    return False


def closure(state: JobState, name: str) -> list[str]:
    """``name`` and every planned group after it, in the order of the plan."""
    found = {name}
    for other, planned in state.plan.groups.items():  # needs come first
        if found.intersection(planned.spec.needs):
            found.add(other)
    return [other for other in state.plan.groups if other in found]


def _records(state: JobState, group: str) -> Iterator[tuple[str, GroupRecord]]:
    """The records of a group, of a fork's members, or of one member."""
    name, ordinal = split_member(group)
    ids = [group] if ordinal is not None else list(dict.fromkeys([name, *state.members(name)]))
    return ((each, state.groups[each]) for each in ids if each in state.groups)


def _open(state: JobState, group: str) -> Iterator[str]:
    """Whose skip is yet to come: what has not ended, recorded or not."""
    name, ordinal = split_member(group)
    if ordinal is not None:
        ids: Iterator[str] = iter([group])
    elif not state.census[name].total():
        ids = iter([name])  # nothing of it has begun: it ends as a whole
    else:
        ids = state.members(name)
    return (each for each in ids if not state.record(each).state.terminal)


# ---- the decision --------------------------------------------------------------------------------------------------


def bring_about(draft: Draft) -> bool:
    """Do what was asked, as much of it as fits into one commit.

    Returns whether records have gone, which the state does not follow: the rest is decided from a fresh load.
    """
    while draft.job.asks and not draft.full_up() and not draft.decision.reload:
        ask = draft.job.asks[0]
        {"skip": _skip, "rerun": _rerun, "renew": _renew}[ask.do](draft, ask.group)
        if draft.decision.full:
            break  # perhaps there is more to it; looking once more costs little
        draft.job = replace(draft.job, asks=draft.job.asks[1:])
    draft.decision.more |= bool(draft.job.asks) or draft.decision.reload
    return draft.decision.reload


def _skip(draft: Draft, group: str) -> None:
    for each in list(_open(draft.state, group)):
        if draft.full_up():
            return
        draft.drop_attempt(each)
        draft.move(each, replace(draft.state.record(each), state=S.SKIPPED, reason=SKIPPED), asked=True)


def _rerun(draft: Draft, group: str) -> None:
    """Everything of it, and of what comes after it, as if it had never run.

    The records go, and with them the inputs that were frozen and the fork values that were collected: what runs again
    may read other outputs, and have other members. Of a single member the record stays, for the sake of the others.
    """
    name, ordinal = split_member(group)
    names = closure(draft.state, name)
    for each in reversed(names):  # never leaves a group ahead of what it needs
        if ordinal is not None and each == name:
            record = draft.state.record(group)
            if record.state is not S.WAITING and not draft.full_up():
                draft.drop_attempt(group)
                draft.move(group, GroupRecord(state=S.WAITING, epoch=record.epoch, reason=RERUN), asked=True)
            return
        gone = [group_id for group_id, _ in _records(draft.state, each)]
        for group_id in gone:
            if draft.full_up():
                return
            draft.forget(group_id)
        draft.thaw(each, collected=_made_by(draft.state, each, names))
        if gone:
            draft.tell(S.WAITING, group=each, code=RERUN.code, text=RERUN.text)


def _made_by(state: JobState, fork: str, names: list[str]) -> bool:
    """The values of ``fork`` came from one of ``names``, which will make them anew."""
    source = state.plan.groups[fork].spec.fork_from
    return source is not None and any(
        fork in dict(state.plan.groups[name].feeds)
        and (source.output == name or source.output in state.record(name).rows)
        for name in names
    )


def _renew(draft: Draft, group_id: str) -> None:
    """An attempt of a group in recovery that runs with what was altered since is ended; the next has the new values.

    One that nobody has claimed needs nothing: whoever claims it reads the plan as it stands.
    """
    record, attempt = draft.state.record(group_id), draft.state.attempts.get(group_id)
    if record.state is S.QUEUED and attempt is not None and attempt.claimant:
        start(draft, group_id, record, attempt)
        if draft.full_up():
            return
        record = draft.state.record(group_id)
    if record.state is not S.RUNNING or not record.recovering or record.revision >= draft.job.revision:
        return
    if attempt is not None and attempt.outcome is not None:
        return  # it has ended, with whatever it had
    draft.drop_attempt(group_id)
    again = replace(record, state=S.BACKOFF, next_at=draft.world.now, reason=ALTERED)
    draft.move(group_id, again, next_at=again.next_at)
