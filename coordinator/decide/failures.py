"""Decides what follows an attempt that failed, was lost or was handed back. Pure."""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.backoff import backoff, loss_backoff
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.report import Failure

S = GroupState
MAX_RELEASES = 50


def fail(draft: Draft, group_id: str, record: GroupRecord, failure: Failure) -> None:
    """Count a failed step against the group's retries, and retry if any are left."""
    policy, failures = draft.planned(group_id).retry, record.failures + 1
    # The first error of its own precedes that of a worker that was lost earlier, which is no
    # reason of the end.
    first = failure if not record.failures else record.first_error
    charged = replace(record, first_error=first, last_error=failure, failures=failures)
    if why := policy.why_final(failure):
        _end(draft, group_id, charged, Reason(failure.code, f"{failure.text} ({why})"))
    elif failures > policy.max:
        tried = (
            "it was not to be retried"
            if not policy.max
            else f"all {policy.max} retries are used up"
        )
        _end(draft, group_id, charged, Reason(failure.code, f"{failure.text} ({tried})"))
    else:
        wait = backoff(policy, failures, f"{draft.env.nonce}/{group_id}/{record.epoch}")
        text = f"{failure.text} (retry {failures} of {policy.max} in {format_duration(wait)})"
        _retry(draft, group_id, replace(charged, losses=0), wait, Reason(failure.code, text))


def lose(draft: Draft, group_id: str, record: GroupRecord, failure: Failure) -> None:
    """Count a lost worker, and retry unless too many were lost in a row."""
    limit, losses = draft.planned(group_id).spec.worker_losses, record.losses + 1
    # A lost worker never hides the user's own error.
    charged = replace(
        record, first_error=record.first_error or failure, last_error=failure, losses=losses
    )
    if losses >= limit:
        many = "1 worker was" if losses == 1 else f"{losses} workers in a row were"
        text = f"{many} lost under this group, so it may be what kills them: {failure.text}"
        _end(draft, group_id, charged, Reason("POISON", text), lost=True)
    else:
        reason = Reason(failure.code, f"{failure.text} (loss {losses}; {limit} in a row end it)")
        _retry(draft, group_id, charged, loss_backoff(losses), reason, lost=True)


def release(draft: Draft, group_id: str, record: GroupRecord, why: str) -> None:
    """Retry at once after an attempt was handed back, which uses up no budget."""
    charged = replace(record, releases=record.releases + 1)
    if charged.releases > MAX_RELEASES:
        text = f"handed back {charged.releases} times without an end: {why}"
        _end(draft, group_id, charged, Reason("RELEASED", text))
    else:
        _retry(draft, group_id, charged, 0.0, Reason("RELEASED", why))


def _end(draft: Draft, group_id: str, record: GroupRecord, reason: Reason, **event: bool) -> None:
    draft.move(group_id, replace(record, state=S.FAILED, reason=reason), **event)


def _retry(
    draft: Draft, group_id: str, record: GroupRecord, wait: float, reason: Reason, **event: bool
) -> None:
    at = draft.env.now + wait
    draft.move(
        group_id, replace(record, state=S.BACKOFF, next_at=at, reason=reason), next_at=at, **event
    )
