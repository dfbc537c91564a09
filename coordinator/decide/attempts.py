"""What the live attempts of a job say, and what that means for their groups.

Two budgets: ``retry`` counts failures of the user's code; ``worker_losses`` counts workers lost in a row, which are
our failure and never eat a user's retry. An attempt that is handed back (RELEASED) is charged to neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from unstuck.coordinator.decide.deadlines import backoff, held_until, lapsed, loss_backoff
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Environment, Guard
from unstuck.coordinator.model.records import Attempt, GroupRecord, Reason
from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.checks import MAX_GROUPS, MAX_MEMBERS
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.group import MAX_JOB_BYTES, Scalar, fork_bytes
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

S = GroupState
MAX_RELEASES = 50


def read_attempt(draft: Draft, group_id: str) -> None:
    """Apply what the attempt of a group says: its claim, its outcome, a lapsed lease, or a lost record."""
    record = draft.state.record(group_id)
    attempt = draft.state.attempts.get(group_id)
    if record.state not in (S.QUEUED, S.RUNNING, S.CANCELING):
        return
    # An attempt that was claimed and has ended since the last look takes two moves, and one more for each fork that it
    # feeds. The first attempt of a commit is always applied: one that no commit has room for would wait for ever.
    moves = draft.decision.moves
    if moves and moves > MAX_TRANSITIONS - 2 - len(draft.planned(group_id).feeds):
        draft.decision.more = True
        return
    if attempt is None or (attempt.epoch, attempt.nonce) != (record.epoch, record.nonce):
        restore_attempt(draft, group_id, record)
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


def restore_attempt(draft: Draft, group_id: str, record: GroupRecord) -> None:
    """The attempt's record is gone (a store restored in part), so no runner could ever claim or finish it."""
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
    """Store the values of a dynamic fork. They must come from one maker only, or the fork would be ambiguous."""
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
    """Which limit of the job these values of ``fork`` would exceed; empty if none."""
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


@dataclass(frozen=True, slots=True)
class Folded:
    """The group after its attempt has ended."""

    record: GroupRecord
    collected: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    event: dict[str, Any] = field(default_factory=dict)


def fold(
    planned: PlannedGroup,
    group_id: str,
    record: GroupRecord,
    outcome: Outcome | None,
    env: Environment,
    *,
    interrupted: bool = False,
) -> Folded:
    """The group's record after ``outcome``; None stands for a lapsed lease without an outcome.

    Args:
        interrupted: its runner was told to hand it back, by a pause that did not wait.
    """
    if record.state is GroupState.CANCELING and (outcome is None or outcome.kind is not OutcomeKind.SUCCEEDED):
        # An attempt that was told to end is not tried again, however it ends.
        reason = Reason("CANCELED", "canceled while running")
        if outcome is None:
            text = f"worker {record.worker} was not heard of again; whatever it still does can change nothing"
            reason = Reason("UNCONFIRMED", text)
        return Folded(replace(record, state=GroupState.CANCELED, reason=reason))
    if outcome is None:
        text = f"worker {record.worker} was not heard of for a whole lease ({format_duration(env.lease_ttl)})"
        return _lost(planned, group_id, record, Failure("LEASE_LAPSED", text), env)
    if outcome.kind is OutcomeKind.SUCCEEDED:
        return _succeeded(record, outcome)
    if outcome.kind in (OutcomeKind.RELEASED, OutcomeKind.CANCELED):
        return _released(record, outcome, env, interrupted)
    failure = outcome.failure or Failure("NO_REASON", "the worker gave no reason")
    if outcome.kind is OutcomeKind.LOST:
        return _lost(planned, group_id, record, failure, env)
    return _failed(planned, group_id, record, failure, env)


def _succeeded(record: GroupRecord, outcome: Outcome) -> Folded:
    done = replace(
        record,
        state=GroupState.SUCCEEDED,
        staging=outcome.staging,
        adopted=outcome.adopted,
        rows=outcome.rows,
        results=outcome.results,
        failures=0,
        losses=0,
        reason=Reason("ADOPTED", "an earlier attempt had finished this work; nothing was run")
        if outcome.adopted
        else None,
    )
    event: dict[str, Any] = {"rows": sum(outcome.rows.values())} if outcome.rows else {}
    if outcome.adopted:
        event["adopted"] = True
    return Folded(done, {key: tuple(values) for key, values in outcome.forks.items()}, event)


def _remembered(record: GroupRecord, failure: Failure) -> GroupRecord:
    """First and last error are both kept; a lost worker never hides the user's own error."""
    return replace(record, first_error=record.first_error or failure, last_error=failure)


def _failed(planned: PlannedGroup, group_id: str, record: GroupRecord, failure: Failure, env: Environment) -> Folded:
    record = _remembered(record, failure)
    policy = planned.retry
    failures = record.failures + 1
    if not failure.recoverable:
        reason = Reason(failure.code, f"{failure.text} (not worth a retry)")
        return Folded(replace(record, state=GroupState.FAILED, failures=failures, reason=reason))
    if failures > policy.max:
        tried = "it was not to be retried" if not policy.max else f"all {policy.max} retries are used up"
        reason = Reason(failure.code, f"{failure.text} ({tried})")
        return Folded(replace(record, state=GroupState.FAILED, failures=failures, reason=reason))
    wait = backoff(policy, failures, f"{env.nonce}/{group_id}/{record.epoch}")
    reason = Reason(failure.code, f"{failure.text} (retry {failures} of {policy.max} in {format_duration(wait)})")
    waiting = replace(
        record, state=GroupState.BACKOFF, failures=failures, losses=0, next_at=env.now + wait, reason=reason
    )
    return Folded(waiting, event={"next_at": waiting.next_at})


def _lost(planned: PlannedGroup, group_id: str, record: GroupRecord, failure: Failure, env: Environment) -> Folded:
    record = _remembered(record, failure)
    losses = record.losses + 1
    if losses >= planned.spec.worker_losses:
        many = "1 worker was" if losses == 1 else f"{losses} workers in a row were"
        text = f"{many} lost under this group, so it may be what kills them: {failure.text}"
        return Folded(replace(record, state=GroupState.FAILED, losses=losses, reason=Reason("POISON", text)))
    wait = loss_backoff(losses)
    reason = Reason(failure.code, f"{failure.text} (loss {losses}; {planned.spec.worker_losses} in a row end it)")
    waiting = replace(record, state=GroupState.BACKOFF, losses=losses, next_at=env.now + wait, reason=reason)
    return Folded(waiting, event={"next_at": waiting.next_at})


def _released(record: GroupRecord, outcome: Outcome, env: Environment, interrupted: bool) -> Folded:
    releases = record.releases + 1
    said = outcome.failure.text if outcome.failure else "handed back by a worker that was told to stop"
    if interrupted:
        said = "interrupted by a pause that did not wait, and handed back"
    if releases > MAX_RELEASES:
        text = f"handed back {releases} times without an end: {said}"
        return Folded(replace(record, state=GroupState.FAILED, releases=releases, reason=Reason("RELEASED", text)))
    waiting = replace(
        record, state=GroupState.BACKOFF, releases=releases, next_at=env.now, reason=Reason("RELEASED", said)
    )
    return Folded(waiting, event={"next_at": waiting.next_at})
