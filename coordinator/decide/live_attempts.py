"""Applies the attempts of a job to its groups: claims, outcomes, expired leases, lost records.

There are two budgets. ``retry`` counts failures of the user's code. ``worker_losses`` counts
workers lost in a row, which never use up a retry. An attempt that is handed back (RELEASED) uses up
neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.failures import fail, lose, release
from unstuck.coordinator.decide.timers.leases import end_lapsed, lapsed
from unstuck.coordinator.model.decision import MAX_TRANSITIONS
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, Reason
from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.checks.fork_checks import MAX_MEMBERS
from unstuck.coordinator.spec.checks.graph_checks import MAX_GROUPS
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.spec.fields import Scalar
from unstuck.tasks.spec.group import MAX_JOB_BYTES, fork_bytes
from unstuck.tasks.spec.outputs import REJECTED

S = GroupState


def read_attempt(draft: Draft, group_id: str) -> None:
    """Apply the attempt of a group: its claim, its outcome, an expired lease, or a lost record."""
    record = draft.state.record(group_id)
    attempt = draft.state.attempts.get(group_id)
    if record.state not in (S.QUEUED, S.RUNNING, S.CANCELING):
        return
    # An attempt that was claimed and has ended since the last look takes two moves, and one more
    # for each fork that it feeds. The first attempt of a commit is always applied: one that no
    # commit has room for would wait for ever.
    room = MAX_TRANSITIONS - 2 - len(draft.planned(group_id).feeds)
    if draft.decision.moves > max(0, room):
        draft.decision.more = True
        return
    if attempt is None or (attempt.epoch, attempt.nonce) != (record.epoch, record.nonce):
        _replace_lost(draft, group_id, record)
        return
    if record.state is S.QUEUED and attempt.claimant:
        start(draft, group_id, record, attempt)
        record = draft.state.record(group_id)
    if attempt.outcome is not None:
        apply_outcome(draft, group_id, attempt.outcome)
    elif record.state is not S.QUEUED and lapsed(record, attempt, draft.env):
        end_lapsed(draft, group_id, record, attempt)


def _replace_lost(draft: Draft, group_id: str, record: GroupRecord) -> None:
    """Handle an attempt without its record, which no runner could ever claim or finish.

    It happens when a store is restored in part.
    """
    if record.state is not S.QUEUED:
        gone = Failure("ATTEMPT_GONE", "the record of the running attempt is gone")
        apply_outcome(draft, group_id, Outcome(OutcomeKind.LOST, failure=gone))
        return
    spec = draft.planned(group_id).spec
    offered = AttemptRecord(
        epoch=record.epoch, nonce=record.nonce, pool=spec.pool or "", spark=spec.spark
    )
    draft.offer(group_id, offered)


def start(draft: Draft, group_id: str, record: GroupRecord, attempt: AttemptRecord) -> None:
    """Mark a group as running since its claim, even if the job was paused after the claim."""
    began = min(attempt.claimed_at or draft.env.now, draft.env.now)
    if not draft.job.started_at:
        draft.job = replace(draft.job, started_at=began)
    running = replace(
        record,
        state=S.RUNNING,
        worker=attempt.worker,
        started_at=attempt.claimed_at,
        revision=attempt.revision,
    )
    draft.move(group_id, running, worker=attempt.worker, at=began)


def apply_outcome(draft: Draft, group_id: str, outcome: Outcome) -> None:
    """Apply the outcome of an attempt to its group."""
    record, attempt = draft.state.record(group_id), draft.state.attempts.get(group_id)
    draft.drop_attempt(group_id)
    draft.decision.ended[outcome.kind] += 1
    if outcome.zone:
        record = replace(record, zone=outcome.zone)
    if outcome.kind is OutcomeKind.SUCCEEDED:
        _succeeded(draft, group_id, record, outcome)
    elif record.state is S.CANCELING:
        # An attempt that was canceled is not tried again, however it ends.
        draft.move(
            group_id,
            replace(record, state=S.CANCELED, reason=Reason("CANCELED", "canceled while running")),
        )
    elif outcome.kind in (OutcomeKind.RELEASED, OutcomeKind.CANCELED):
        why = (
            outcome.failure.text
            if outcome.failure
            else "handed back by a worker that was told to stop"
        )
        if attempt is not None and attempt.instruction == "DRAIN":
            why = "interrupted by a pause that did not wait, and handed back"
        release(draft, group_id, record, why)
    else:
        charge = lose if outcome.kind is OutcomeKind.LOST else fail
        charge(
            draft,
            group_id,
            record,
            outcome.failure or Failure("NO_REASON", "the worker gave no reason"),
        )


def _succeeded(draft: Draft, group_id: str, record: GroupRecord, outcome: Outcome) -> None:
    for fork, key in draft.planned(group_id).feeds:
        if key in outcome.forks:
            feed(draft, fork, tuple(outcome.forks[key]))
    reason = Reason("ARRIVED", outcome.arrived) if outcome.arrived else None
    if outcome.ran_again:
        reason = Reason("RAN_AGAIN", "; ".join(filter(None, [outcome.ran_again, outcome.arrived])))
    if outcome.adopted:
        reason = Reason("ADOPTED", "an earlier attempt had finished this work; nothing was run")
    done = replace(
        record,
        state=S.SUCCEEDED,
        staging=outcome.staging,
        done=outcome.done,
        adopted=outcome.adopted,
        rows=outcome.rows,
        rejected=outcome.rejected,
        results=outcome.results,
        failures=0,
        losses=0,
        reason=reason,
    )
    rejected = sum(outcome.rows.get(name + REJECTED, 0) for name in outcome.rejected)
    event: dict[str, Any] = {"rows": sum(outcome.rows.values()) - rejected} if outcome.rows else {}
    if outcome.adopted:
        event["adopted"] = True
    draft.move(group_id, done, **event)


def feed(draft: Draft, fork: str, values: tuple[Scalar, ...]) -> None:
    """Store the values of a dynamic fork.

    Exactly one group may provide them, or the fork would be ambiguous.
    """
    collected = draft.state.collected.get(fork)
    if collected is None and (too_much := _too_much(draft, fork, values)):
        if not draft.state.ended_whole(fork):
            draft.move(fork, GroupRecord(state=S.FAILED, reason=Reason("FORK_TOO_LARGE", too_much)))
    elif collected is None:
        draft.decision.collected[fork] = values
        draft.state.collect(fork, values)
        draft.touched.append(fork)
    elif collected != values and not draft.state.census[fork].total():
        reason = Reason(
            "FORK_AMBIGUOUS", "two of the groups it needs made its source, with different values"
        )
        draft.move(fork, GroupRecord(state=S.FAILED, reason=reason))


def _too_much(draft: Draft, fork: str, values: tuple[Scalar, ...]) -> str:
    """Return the limit of the job that these values of ``fork`` exceed; empty if none."""
    members = draft.state.size + len(values)
    if members > MAX_GROUPS + MAX_MEMBERS:
        return (
            f"with the {len(values):,} values of {fork} the job would have {members:,} groups and "
            f"members in all; at most {MAX_GROUPS + MAX_MEMBERS:,} are allowed"
        )
    size = draft.state.collected_bytes + fork_bytes(values)
    if size > MAX_JOB_BYTES:
        return (
            f"with the values of {fork} ({megabytes(fork_bytes(values))}) those of all dynamic "
            f"forks of the job would take {megabytes(size)}; at most {megabytes(MAX_JOB_BYTES)} "
            "are allowed"
        )
    return ""
