"""Intake: what the live attempts say goes onto the groups. Claims, outcomes, lapsed leases, records that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unstuck.coordinator.decide.attempts import Folded, fold, held_until, lapsed
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Guard
from unstuck.coordinator.model.records import Attempt, GroupRecord, Reason
from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.checks import MAX_GROUPS, MAX_MEMBERS
from unstuck.tasks.protocol.group import MAX_JOB_BYTES, Scalar, fork_bytes
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

S = GroupState


def look_at(draft: Draft, group_id: str) -> None:
    """Take in what the attempt of a group says, or that it says nothing any more."""
    record = draft.state.record(group_id)
    attempt = draft.state.attempts.get(group_id)
    if record.state not in (S.QUEUED, S.RUNNING, S.CANCELING):
        return
    # Claimed and ended since we last looked: two moves, and one more for each fork whose maker it is not alone.
    # The first of a commit is always taken in, whatever it takes: one for which no commit has room would wait for ever.
    moves = draft.decision.moves
    if moves and moves > MAX_TRANSITIONS - 2 - len(draft.planned(group_id).feeds):
        draft.decision.more = True
        return
    if attempt is None or (attempt.epoch, attempt.nonce) != (record.epoch, record.nonce):
        mend(draft, group_id, record)
        return
    if record.state is S.QUEUED and attempt.claimant:
        start(draft, group_id, record, attempt)
        record = draft.state.record(group_id)
    if attempt.outcome is not None:
        interrupted = attempt.order == "DRAIN"
        planned = draft.planned(group_id)
        settle(draft, group_id, fold(planned, group_id, record, attempt.outcome, draft.env, interrupted=interrupted))
    elif record.state is not S.QUEUED:
        held = replace(attempt, lease=held_until(record, attempt, draft.env))
        if lapsed(held, draft.env):
            kind: Literal["lapsed", "unclaimed"] = "lapsed" if attempt.claimant else "unclaimed"
            draft.decision.guards.append(Guard(group_id, record.epoch, record.nonce, kind))
            settle(draft, group_id, fold(draft.planned(group_id), group_id, record, None, draft.env))


def mend(draft: Draft, group_id: str, record: GroupRecord) -> None:
    """The attempt's record is gone (a store restored in part): nobody could ever claim or finish it."""
    if record.state is S.QUEUED:
        draft.offer(group_id, Attempt(epoch=record.epoch, nonce=record.nonce))
        return
    gone = Outcome(OutcomeKind.LOST, failure=Failure("ATTEMPT_GONE", "the record of the running attempt is gone"))
    settle(draft, group_id, fold(draft.planned(group_id), group_id, record, gone, draft.env))


def start(draft: Draft, group_id: str, record: GroupRecord, attempt: Attempt) -> None:
    if not draft.job.started_at:
        draft.job = replace(draft.job, started_at=draft.env.now)
    running = replace(
        record, state=S.RUNNING, worker=attempt.worker, started_at=attempt.claimed_at, revision=attempt.revision
    )
    draft.move(group_id, running, worker=attempt.worker)


def settle(draft: Draft, group_id: str, folded: Folded) -> None:
    """An attempt has ended: its record goes, its outcome stands on the group."""
    draft.drop_attempt(group_id)
    for fork, key in draft.planned(group_id).feeds:
        if key in folded.collected:
            feed(draft, fork, folded.collected[key])
    draft.move(group_id, folded.record, **folded.event)


def feed(draft: Draft, fork: str, values: tuple[Scalar, ...]) -> None:
    """The values of a dynamic fork have arrived; from one maker only, or nobody could say what the fork stands for."""
    standing = draft.state.collected.get(fork)
    if standing is None and (too_much := _too_much(draft, fork, values)):
        if not draft.state.ended_whole(fork):
            draft.move(fork, GroupRecord(state=S.FAILED, reason=Reason("FORK_TOO_LARGE", too_much)))
    elif standing is None:
        draft.decision.collected[fork] = values
        draft.state.collect(fork, values)
        draft.touched.append(fork)
    elif standing != values and not draft.state.census[fork].total():
        reason = Reason("FORK_AMBIGUOUS", "two of the groups it needs made its source, with different values")
        draft.move(fork, GroupRecord(state=S.FAILED, reason=reason))


def _too_much(draft: Draft, fork: str, values: tuple[Scalar, ...]) -> str:
    """What the job would have too much of with these values of ``fork``; empty if the store can take them."""
    members = draft.state.size + len(values)
    if members > MAX_GROUPS + MAX_MEMBERS:
        return (
            f"with the {len(values):,} values of {fork} the job would have {members:,} groups and members in all; at "
            f"most {MAX_GROUPS + MAX_MEMBERS:,} are allowed"
        )
    size = draft.state.collected_bytes + fork_bytes(values)
    if size > MAX_JOB_BYTES:
        return (
            f"with the values of {fork} ({megabytes(fork_bytes(values))}) those of all dynamic forks of the job would "
            f"take {megabytes(size)}; at most {megabytes(MAX_JOB_BYTES)} are allowed"
        )
    return ""
