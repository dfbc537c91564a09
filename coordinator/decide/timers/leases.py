"""Decides when a lease has expired, and ends the attempt of a dead worker. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.failures import lose
from unstuck.coordinator.decide.timers.clock import CLOCK_SLACK
from unstuck.coordinator.model.decision import CommitGuard, Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, Reason
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.report import Failure

S = GroupState
LAPSED = "lapsed"  # how the attempt of a dead worker is counted


def lease_end(record: GroupRecord, attempt: AttemptRecord, env: Environment) -> float:
    """Return when the lease of a running attempt ends, in seconds by the clock of Redis.

    An attempt without a claim (the store was rolled back after the commit that read it) has one
    term from that commit on. A living runner claims it again in that time; without this limit
    nobody would notice a dead one.
    """
    return attempt.lease if attempt.claimant else record.since + env.lease_ttl


def lapsed(record: GroupRecord, attempt: AttemptRecord, env: Environment) -> bool:
    """Return whether a lease has expired and no grace period is active.

    A lease that ends later than one full term from now was granted before the clock was set back
    (rule 7). At the end of the grace period, every living runner has renewed its lease.
    """
    return (
        env.takeover
        and not env.now <= lease_end(record, attempt, env) <= env.now + env.lease_ttl + CLOCK_SLACK
    )


def end_lapsed(draft: Draft, group_id: str, record: GroupRecord, attempt: AttemptRecord) -> None:
    """End the attempt of a worker that did not renew its lease; the commit checks again."""
    kind: Literal["lapsed", "unclaimed"] = "lapsed" if attempt.claimant else "unclaimed"
    draft.decision.guards.append(CommitGuard(group_id, record.epoch, record.nonce, kind))
    draft.drop_attempt(group_id)
    draft.decision.ended[LAPSED] += 1
    unheard = f"worker {record.worker} was not heard of"
    if record.state is not S.CANCELING:
        text = f"{unheard} for a whole lease ({format_duration(draft.env.lease_ttl)})"
        lose(draft, group_id, record, Failure("LEASE_LAPSED", text))
    else:
        reason = Reason(
            "UNCONFIRMED", f"{unheard} again; whatever it still does can change nothing"
        )
        draft.move(group_id, replace(record, state=S.CANCELED, reason=reason))
