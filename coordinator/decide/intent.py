"""Obeying: what the user wants of the job, brought about. The intent is read here and never written.

However groups fail or succeed meanwhile, the job ends where the user wanted it. Whatever is taken back was unclaimed
when we looked, and is checked to be so again inside the commit.
"""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.completion import cancel_waiting
from unstuck.coordinator.decide.deadlines import cancel_at
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import Guard
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.tasks.duration import format_duration

S = GroupState
PAUSED = Reason("USER_PAUSED", "the user paused the job; it waits for a resume")
STOPPED = Reason("USER_STOPPED", "the user stopped the job; what was running could end")
CANCELED = Reason("USER_CANCELED", "the user canceled the job")
FORCED = Reason("FORCE_STOPPED", "the user stopped the job by force; whatever still runs can change nothing")

OUT_OF_TIME = Reason("JOB_TIMEOUT", "the time of the job was over")


def obey(draft: Draft) -> None:
    """Bring about the intent, where it is not simply to run."""
    if draft.job.intent is Intent.PAUSE:
        hold(draft)
    elif draft.job.intent is Intent.STOP:
        cancel_unclaimed(draft, STOPPED)
        if draft.job.timed_out is not None:
            end_running(draft, OUT_OF_TIME)
    elif draft.job.intent is Intent.CANCEL:
        cancel(draft)
    elif draft.job.intent is Intent.FORCE_STOP:
        for group_id in draft.state.active:
            if not draft.full_up():
                end_attempt(draft, group_id, FORCED)
        cancel_waiting(draft, FORCED)


def hold(draft: Draft) -> None:
    """Unclaimed hints are taken back; what runs may end, or is interrupted and handed back (``pause --now``)."""
    for group_id in unclaimed(draft):
        if draft.full_up():
            return
        record = draft.state.record(group_id)
        guard(draft, group_id)
        draft.drop_attempt(group_id)
        draft.move(group_id, replace(record, state=S.WAITING, reason=PAUSED))
    if draft.job.pause_now:
        for group_id in draft.state.by_state[S.RUNNING]:
            draft.order(group_id, "DRAIN")


def cancel_unclaimed(draft: Draft, reason: Reason) -> None:
    """Everything that no runner holds is canceled."""
    for group_id in unclaimed(draft):
        if draft.full_up():
            return
        guard(draft, group_id)
        end_attempt(draft, group_id, reason)
    cancel_waiting(draft, reason)


def cancel(draft: Draft) -> None:
    """What runs is told to end; past the deadline the job is finalised without its runners."""
    cancel_unclaimed(draft, CANCELED)
    for group_id in list(draft.state.by_state[S.RUNNING]):
        if draft.full_up():
            return
        draft.order(group_id, "CANCEL")
        draft.move(group_id, replace(draft.state.record(group_id), state=S.CANCELING, reason=CANCELED))
    if draft.env.now < cancel_at(draft.job, draft.env):
        return
    for group_id in list(draft.state.by_state[S.CANCELING]):
        if draft.full_up():
            return
        worker = draft.state.record(group_id).worker
        waited = format_duration(draft.env.cancel_deadline)
        text = f"worker {worker} did not confirm the cancel within {waited}; whatever it still does can change nothing"
        end_attempt(draft, group_id, Reason("UNCONFIRMED", text))


def unclaimed(draft: Draft) -> list[str]:
    """Groups on offer that nobody had claimed when the attempts were read."""
    return [
        group_id
        for group_id in draft.state.by_state[S.QUEUED]
        if (attempt := draft.state.attempts.get(group_id)) is not None and not attempt.claimant
    ]


def guard(draft: Draft, group_id: str) -> None:
    """Check once more, inside the commit, that nobody has claimed it.

    Not where this decision has just offered it anew, its record being gone: the store holds none, nobody can claim it,
    and the guard would be refused for ever.
    """
    if group_id not in draft.decision.offered:
        record = draft.state.record(group_id)
        draft.decision.guards.append(Guard(group_id, record.epoch, record.nonce, "unclaimed"))


def end_attempt(draft: Draft, group_id: str, reason: Reason) -> None:
    """The group is canceled, and its attempt stale from this commit on."""
    draft.drop_attempt(group_id)
    draft.move(group_id, replace(draft.state.record(group_id), state=S.CANCELED, reason=reason))


def end_running(draft: Draft, reason: Reason) -> None:
    """What runs is canceled, without waiting for its runners."""
    for group_id in list(draft.state.by_state[S.RUNNING]):
        if draft.full_up():
            return
        end_attempt(draft, group_id, reason)


def renew_budgets(draft: Draft) -> None:
    """After a resume every group has all its retries, and its time in the queue, again.

    Nobody waits out a backoff, and none is called paused.
    """
    # Those in BACKOFF that have their whole budget too: their time may lie ahead since the clock was set back.
    for group_id in {**draft.state.recovering, **draft.state.by_state[S.BACKOFF]}:
        record = replace(draft.state.record(group_id), failures=0, losses=0)
        if record.state is S.BACKOFF:
            record = replace(record, next_at=draft.env.now)
        draft.put(group_id, record)
    for group_id in unclaimed(draft):
        # What a halted job had on offer could not be claimed; that time is not held against its queue.
        if draft.planned(group_id).spec.queue_timeout is not None:
            draft.put(group_id, replace(draft.state.record(group_id), since=draft.env.now))
    for group_id in list(draft.state.by_state[S.WAITING]):
        record = draft.state.record(group_id)
        if record.reason == PAUSED:
            draft.put(group_id, replace(record, reason=None))
    draft.job = replace(draft.job, renewed=False)
