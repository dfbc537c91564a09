"""Apply the live attempts of a job to their groups: claims, outcomes, lapsed leases and lost records.

Two budgets: ``retry`` counts failures of the user's code; ``worker_losses`` counts workers lost in a row, which are
our failure and never eat a user's retry. An attempt that is handed back (RELEASED) is charged to neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from unstuck.coordinator.decide.deadlines import backoff, lapsed, loss_backoff
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Guard
from unstuck.coordinator.model.records import AttemptRecord, FinalFailure, GroupRecord, Reason
from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.spec_checks import MAX_GROUPS, MAX_MEMBERS
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.report import HOOK_RAN, Failure, Outcome, OutcomeKind
from unstuck.tasks.spec.fields import Scalar
from unstuck.tasks.spec.group import MAX_JOB_BYTES, fork_bytes
from unstuck.tasks.spec.outputs import REJECTED

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
        # The attempt's record is gone (a store restored in part), so no runner could ever claim or finish it.
        if record.state is S.QUEUED:
            spec = draft.planned(group_id).spec
            made = AttemptRecord(epoch=record.epoch, nonce=record.nonce, pool=spec.pool or "", spark=spec.spark)
            draft.offer(group_id, made)
        else:
            gone = Failure("ATTEMPT_GONE", "the record of the running attempt is gone")
            apply_outcome(draft, group_id, Outcome(OutcomeKind.LOST, failure=gone))
        return
    if record.state is S.QUEUED and attempt.claimant:
        start(draft, group_id, record, attempt)
        record = draft.state.record(group_id)
    if attempt.outcome is not None:
        apply_outcome(draft, group_id, attempt.outcome)
    elif record.state is not S.QUEUED and lapsed(record, attempt, draft.env):
        kind: Literal["lapsed", "unclaimed"] = "lapsed" if attempt.claimant else "unclaimed"
        draft.decision.guards.append(Guard(group_id, record.epoch, record.nonce, kind))
        apply_outcome(draft, group_id, None)


def start(draft: Draft, group_id: str, record: GroupRecord, attempt: AttemptRecord) -> None:
    """The group runs since its claim; a pause that came between the claim and this commit came later."""
    began = min(attempt.claimed_at or draft.env.now, draft.env.now)
    if not draft.job.started_at:
        draft.job = replace(draft.job, started_at=began)
    running = replace(
        record, state=S.RUNNING, worker=attempt.worker, started_at=attempt.claimed_at, revision=attempt.revision
    )
    draft.move(group_id, running, worker=attempt.worker, at=began)


def apply_outcome(draft: Draft, group_id: str, outcome: Outcome | None) -> None:
    """An attempt has ended: its outcome decides what becomes of the group; None is a lapsed lease without one."""
    record, attempt = draft.state.record(group_id), draft.state.attempts.get(group_id)
    draft.drop_attempt(group_id)
    if outcome is not None and outcome.zone:
        record = replace(record, zone=outcome.zone)
    unheard = f"worker {record.worker} was not heard of"
    if record.final_failure is not None and (record.state is S.CANCELING or _ends_hook(outcome)):
        failure = outcome.failure if outcome is not None else None
        called = failure is not None and failure.code == HOOK_RAN
        said = "it was canceled" if failure is None else f"{failure.code}: {failure.text}"
        draft.fail_after_hook(group_id, "" if called else said)
    elif outcome is not None and outcome.kind is OutcomeKind.SUCCEEDED:
        _succeeded(draft, group_id, record, outcome)
    elif record.state is S.CANCELING:
        # An attempt that was told to end is not tried again, however it ends.
        reason = Reason("CANCELED", "canceled while running")
        if outcome is None:
            reason = Reason("UNCONFIRMED", f"{unheard} again; whatever it still does can change nothing")
        draft.move(group_id, replace(record, state=S.CANCELED, reason=reason))
    elif outcome is None:
        text = f"{unheard} for a whole lease ({format_duration(draft.env.lease_ttl)})"
        _lost(draft, group_id, record, Failure("LEASE_LAPSED", text))
    elif outcome.kind in (OutcomeKind.RELEASED, OutcomeKind.CANCELED):
        said = outcome.failure.text if outcome.failure else "handed back by a worker that was told to stop"
        if attempt is not None and attempt.instruction == "DRAIN":
            said = "interrupted by a pause that did not wait, and handed back"
        _released(draft, group_id, record, said)
    else:
        charge = _lost if outcome.kind is OutcomeKind.LOST else _failed
        charge(draft, group_id, record, outcome.failure or Failure("NO_REASON", "the worker gave no reason"))


def _ends_hook(outcome: Outcome | None) -> bool:
    """Whether an attempt that was to call a hook has done what it could; otherwise another one may call it."""
    return outcome is not None and outcome.kind in (OutcomeKind.SUCCEEDED, OutcomeKind.FAILED)


def _succeeded(draft: Draft, group_id: str, record: GroupRecord, outcome: Outcome) -> None:
    for fork, key in draft.planned(group_id).feeds:
        if key in outcome.forks:
            feed(draft, fork, tuple(outcome.forks[key]))
    reason = Reason("RAN_AGAIN", outcome.ran_again) if outcome.ran_again else None
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
    draft.move(group_id, done, **event, **({"adopted": True} if outcome.adopted else {}))


def _failed(draft: Draft, group_id: str, record: GroupRecord, failure: Failure) -> None:
    policy, failures = draft.planned(group_id).retry, record.failures + 1
    charged = replace(_remembered(record, failure), failures=failures)
    if why := policy.why_final(failure):
        _fail(draft, group_id, charged, Reason(failure.code, f"{failure.text} ({why})"))
    elif failures > policy.max:
        tried = "it was not to be retried" if not policy.max else f"all {policy.max} retries are used up"
        _fail(draft, group_id, charged, Reason(failure.code, f"{failure.text} ({tried})"))
    else:
        wait = backoff(policy, failures, f"{draft.env.nonce}/{group_id}/{record.epoch}")
        text = f"{failure.text} (retry {failures} of {policy.max} in {format_duration(wait)})"
        _retry(draft, group_id, replace(charged, losses=0), wait, Reason(failure.code, text))


def _lost(draft: Draft, group_id: str, record: GroupRecord, failure: Failure) -> None:
    limit, losses = draft.planned(group_id).spec.worker_losses, record.losses + 1
    charged = replace(_remembered(record, failure), losses=losses)
    if losses >= limit:
        many = "1 worker was" if losses == 1 else f"{losses} workers in a row were"
        text = f"{many} lost under this group, so it may be what kills them: {failure.text}"
        _fail(draft, group_id, charged, Reason("POISON", text))
    else:
        reason = Reason(failure.code, f"{failure.text} (loss {losses}; {limit} in a row end it)")
        _retry(draft, group_id, charged, loss_backoff(losses), reason)


def _released(draft: Draft, group_id: str, record: GroupRecord, said: str) -> None:
    charged = replace(record, releases=record.releases + 1)
    if charged.releases > MAX_RELEASES:
        text = f"handed back {charged.releases} times without an end: {said}"
        _fail(draft, group_id, charged, Reason("RELEASED", text))
    else:
        _retry(draft, group_id, charged, 0.0, Reason("RELEASED", said))


def _remembered(record: GroupRecord, failure: Failure) -> GroupRecord:
    """First and last error are both kept; a lost worker never hides the user's own error."""
    return replace(record, first_error=record.first_error or failure, last_error=failure)


def _fail(draft: Draft, group_id: str, record: GroupRecord, reason: Reason) -> None:
    """The group has failed for good. Before that is shown, an attempt of its own calls its ``on_failure`` hook."""
    hooks = draft.planned(group_id).spec.hooks
    if record.final_failure is not None:
        draft.fail_after_hook(group_id, f"{reason.code}: {reason.text}")
    elif hooks is None or not hooks.on_failure:
        draft.move(group_id, replace(record, state=S.FAILED, reason=reason))
    else:
        final_failure = FinalFailure(reason.code, reason.text, record.epoch, draft.env.now)
        told = Reason(reason.code, f"{reason.text}; its on_failure hook is called before it is FAILED")
        _retry(draft, group_id, replace(record, losses=0, final_failure=final_failure), 0.0, told)


def _retry(draft: Draft, group_id: str, record: GroupRecord, wait: float, reason: Reason) -> None:
    at = draft.env.now + wait
    draft.move(group_id, replace(record, state=S.BACKOFF, next_at=at, reason=reason), next_at=at)


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
