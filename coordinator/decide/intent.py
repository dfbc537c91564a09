"""Ends groups by the user's intent, by the job's timeout, or by another group's failure.

Nothing here changes the intent. The job ends as the user intended, even if groups fail or succeed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.clock import come_if_beyond
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.token import fork_member

S = GroupState
PAUSED = Reason("USER_PAUSED", "the user paused the job; it waits for a resume")
STOPPED = Reason("USER_STOPPED", "the user stopped the job; what was running could end")
CANCELED = Reason("USER_CANCELED", "the user canceled the job")
FORCED = Reason(
    "FORCE_STOPPED", "the user stopped the job by force; whatever still runs can change nothing"
)
OUT_OF_TIME = Reason("JOB_TIMEOUT", "the time of the job was over")


def apply_intent(draft: Draft) -> None:
    """Apply the user's intent, unless it is to run."""
    if draft.job.intent is Intent.PAUSE:
        pause(draft)
    elif draft.job.intent is Intent.STOP:
        cancel_unclaimed(draft, STOPPED)
        if draft.job.timed_out is not None:
            cancel_each(draft, draft.state.active, OUT_OF_TIME)
    elif draft.job.intent is Intent.CANCEL:
        cancel(draft)
    elif draft.job.intent is Intent.FORCE_STOP:
        cancel_all(draft, FORCED)


def pause(draft: Draft) -> None:
    """Withdraw unclaimed offers. Running attempts finish, or are handed back (``pause --now``)."""
    for group_id in draft.while_room(draft.unclaimed()):
        draft.check_unclaimed(group_id)
        draft.end_attempt(group_id, S.WAITING, PAUSED)
    if draft.job.pause_now:
        for group_id in draft.state.by_state[S.RUNNING]:
            draft.instruct(group_id, "DRAIN")


def cancel_at(job: JobRecord, env: Environment) -> float:
    """Return when a job that is canceled ends without its runners."""
    return come_if_beyond(job.intent_at, env.now + env.cancel_deadline) + env.cancel_deadline


def cancel(draft: Draft) -> None:
    """Cancel running attempts; after the deadline the job ends without its runners."""
    cancel_unclaimed(draft, CANCELED)
    for group_id in draft.while_room(list(draft.state.by_state[S.RUNNING])):
        draft.instruct(group_id, "CANCEL")
        draft.move(
            group_id, replace(draft.state.record(group_id), state=S.CANCELING, reason=CANCELED)
        )
    if draft.env.now < cancel_at(draft.job, draft.env):
        return
    waited = format_duration(draft.env.cancel_deadline)
    for group_id in draft.while_room(list(draft.state.by_state[S.CANCELING])):
        worker = draft.state.record(group_id).worker
        text = (
            f"worker {worker} did not confirm the cancel within {waited}; whatever it still "
            "does can change nothing"
        )
        draft.end_attempt(group_id, S.CANCELED, Reason("UNCONFIRMED", text))


def fail_fast(draft: Draft) -> None:
    """Cancel all groups except those that run after a failure, because a group failed for good."""
    state = draft.state
    if state.open_groups == state.outliving:
        return  # what runs after a failure may be wide: its reports cost what they cost in any job
    reason = Reason(
        "SIBLING_FAILED", f"group {state.first_failed} failed, and on_failure is cancel_others"
    )
    recorded = [*state.active, *state.by_state[S.BACKOFF], *state.by_state[S.WAITING]]
    cancel_each(
        draft,
        (
            group_id
            for group_id in chain(recorded, without_record(draft))
            if draft.is_over(group_id)
        ),
        reason,
    )


def cancel_all(draft: Draft, reason: Reason) -> None:
    """Cancel all unfinished groups.

    Running attempts become stale at once; their watchdogs end them.

    """
    cancel_each(draft, draft.state.active, reason)
    cancel_waiting(draft, reason)


def cancel_unclaimed(draft: Draft, reason: Reason) -> None:
    """Cancel every group whose attempt no runner holds."""
    for group_id in draft.while_room(draft.unclaimed()):
        draft.check_unclaimed(group_id)
        draft.end_attempt(group_id, S.CANCELED, reason)
    cancel_waiting(draft, reason)


def cancel_waiting(draft: Draft, reason: Reason) -> None:
    """Cancel every group and member that waits for its needs, a free place or its next attempt."""
    recorded = [*draft.state.by_state[S.BACKOFF], *draft.state.by_state[S.WAITING]]
    cancel_each(draft, chain(recorded, without_record(draft)), reason)
    draft.runnable.clear()


def without_record(draft: Draft) -> Iterator[str]:
    """Yield groups and members that were never queued.

    A fork without a queued member is yielded as a whole.
    """
    state = draft.state
    for name in draft.plan.groups:
        begun = state.census[name].total()
        if not begun:
            yield name
        elif not state.ended_whole(name):
            members = range(begun, draft.plan.member_count(name, state.collected) or 0)
            yield from (fork_member(name, ordinal) for ordinal in members)


def cancel_each(draft: Draft, groups: Iterable[str], reason: Reason) -> None:
    for group_id in draft.while_room(groups):
        draft.end_attempt(group_id, S.CANCELED, reason)


def reset_budgets(draft: Draft) -> None:
    """Restore each group's retries and queue timeout after a resume, and end all backoffs."""
    state, now = draft.state, draft.env.now
    # Also groups in BACKOFF with a full budget: after the clock was set back, their time may lie
    # ahead.
    for group_id in {**state.recovering, **state.by_state[S.BACKOFF]}:
        record = replace(state.record(group_id), failures=0, losses=0)
        draft.put(group_id, replace(record, next_at=now) if record.state is S.BACKOFF else record)
    for group_id in draft.unclaimed():
        # Nobody could claim an attempt of a halted job, so that time does not count as time in the
        # queue.
        if draft.planned(group_id).spec.queue_timeout is not None:
            draft.put(group_id, replace(state.record(group_id), since=now))
    for group_id in list(state.by_state[S.WAITING]):
        record = state.record(group_id)
        if record.reason == PAUSED:
            draft.put(group_id, replace(record, reason=None))
    draft.job = replace(draft.job, reset_budgets=False)
