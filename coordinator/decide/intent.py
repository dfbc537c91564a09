"""The user's intent, applied to the groups of a job; nothing here writes the intent.

The job ends as the user intended, however groups fail or succeed meanwhile. An attempt that is taken back was unclaimed
when it was read, and the commit checks that once more.
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


def apply_intent(draft: Draft) -> None:
    """Apply an intent other than to run."""
    if draft.job.intent is Intent.PAUSE:
        pause(draft)
    elif draft.job.intent is Intent.STOP:
        cancel_unclaimed(draft, STOPPED)
        if draft.job.timed_out is not None:
            end_running(draft, OUT_OF_TIME)
    elif draft.job.intent is Intent.CANCEL:
        cancel(draft)
    elif draft.job.intent is Intent.FORCE_STOP:
        for group_id in draft.state.active:
            if not draft.commit_is_full():
                end_attempt(draft, group_id, FORCED)
        cancel_waiting(draft, FORCED)


def pause(draft: Draft) -> None:
    """Take unclaimed hints back. Running attempts may end, or are interrupted and handed back (``pause --now``)."""
    for group_id in unclaimed(draft):
        if draft.commit_is_full():
            return
        record = draft.state.record(group_id)
        guard(draft, group_id)
        draft.drop_attempt(group_id)
        draft.move(group_id, replace(record, state=S.WAITING, reason=PAUSED))
    if draft.job.pause_now:
        for group_id in draft.state.by_state[S.RUNNING]:
            draft.order(group_id, "DRAIN")


def cancel_unclaimed(draft: Draft, reason: Reason) -> None:
    """Cancel every group whose attempt no runner holds."""
    for group_id in unclaimed(draft):
        if draft.commit_is_full():
            return
        guard(draft, group_id)
        end_attempt(draft, group_id, reason)
    cancel_waiting(draft, reason)


def cancel(draft: Draft) -> None:
    """Tell running attempts to end; after the deadline the job ends without its runners."""
    cancel_unclaimed(draft, CANCELED)
    for group_id in list(draft.state.by_state[S.RUNNING]):
        if draft.commit_is_full():
            return
        draft.order(group_id, "CANCEL")
        draft.move(group_id, replace(draft.state.record(group_id), state=S.CANCELING, reason=CANCELED))
    if draft.env.now < cancel_at(draft.job, draft.env):
        return
    for group_id in list(draft.state.by_state[S.CANCELING]):
        if draft.commit_is_full():
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
    """Let the commit check once more that nobody has claimed the attempt.

    An attempt that this decision offers has no guard: the store does not hold it yet, so nobody can claim it, and the
    guard would be refused for ever.
    """
    if group_id not in draft.decision.offered:
        record = draft.state.record(group_id)
        draft.decision.guards.append(Guard(group_id, record.epoch, record.nonce, "unclaimed"))


def end_attempt(draft: Draft, group_id: str, reason: Reason) -> None:
    """Cancel the group; its attempt is stale from this commit on."""
    draft.drop_attempt(group_id)
    draft.move(group_id, replace(draft.state.record(group_id), state=S.CANCELED, reason=reason))


def end_running(draft: Draft, reason: Reason) -> None:
    """Cancel running groups without waiting for their runners."""
    for group_id in list(draft.state.by_state[S.RUNNING]):
        if draft.commit_is_full():
            return
        end_attempt(draft, group_id, reason)


def reset_budgets(draft: Draft) -> None:
    """After a resume every group has all its retries, and its full time in the queue, again.

    No group waits for the end of its backoff, and none is called paused.
    """
    # Also groups in BACKOFF with a full budget: after the clock was set back, their time may lie ahead.
    for group_id in {**draft.state.recovering, **draft.state.by_state[S.BACKOFF]}:
        record = replace(draft.state.record(group_id), failures=0, losses=0)
        if record.state is S.BACKOFF:
            record = replace(record, next_at=draft.env.now)
        draft.put(group_id, record)
    for group_id in unclaimed(draft):
        # Nobody could claim an attempt of a halted job, so that time does not count as time in the queue.
        if draft.planned(group_id).spec.queue_timeout is not None:
            draft.put(group_id, replace(draft.state.record(group_id), since=draft.env.now))
    for group_id in list(draft.state.by_state[S.WAITING]):
        record = draft.state.record(group_id)
        if record.reason == PAUSED:
            draft.put(group_id, replace(record, reason=None))
    draft.job = replace(draft.job, reset_budgets=False)
