"""What an attempt's end means for its group: succeeded, another try, or failed for good. Pure.

Two budgets: ``retry`` counts failures of the user's code; ``worker_losses`` counts workers lost in a row, which are
our failure and never eat a user's retry. An attempt that is handed back (RELEASED) is charged to neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unstuck.coordinator.decide.backoff import backoff, loss_backoff
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import Attempt, GroupRecord, Reason
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.group import Scalar
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

MAX_RELEASES = 50
CLOCK_SLACK = 1.0  # seconds; as in commit.lua


@dataclass(frozen=True, slots=True)
class Folded:
    """The group after its attempt has ended."""

    record: GroupRecord
    collected: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    event: dict[str, Any] = field(default_factory=dict)


def held_until(record: GroupRecord, attempt: Attempt, env: Environment) -> float:
    """When the lease of a running attempt ends, in seconds by the clock of the store.

    One whose claim is gone (the store was rolled back under the commit that had read it) has one term from that commit
    on: a runner that lives claims it again by its next renewal (rule 3), and of one that has died nobody would hear.
    """
    return attempt.lease if attempt.claimant else record.since + env.lease_ttl


def lapsed(attempt: Attempt, env: Environment) -> bool:
    """The lease is over and may be believed to be.

    It never reads as longer than one full term from now (rule 7): one that lies further ahead was given before the
    clock was set back, and once the grace is over whoever lives has renewed it.
    """
    return env.takeover and not env.now <= attempt.lease <= env.now + env.lease_ttl + CLOCK_SLACK


def fold(
    planned: PlannedGroup,
    group_id: str,
    record: GroupRecord,
    outcome: Outcome | None,
    env: Environment,
    *,
    interrupted: bool = False,
) -> Folded:
    """The group's record after ``outcome``; None stands for a lease that lapsed without a word.

    Args:
        interrupted: its runner was told to hand it back, by a pause that did not wait.
    """
    if record.state is GroupState.CANCELING and (outcome is None or outcome.kind is not OutcomeKind.SUCCEEDED):
        # However an attempt ends that was told to end, it is not tried again.
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
