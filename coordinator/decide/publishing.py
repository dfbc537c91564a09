"""The phases of publishing a job. `PHASE_MOVES` has the legal moves.

Only the record decides, because the publishing coordinators may be dead.
"""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.deadlines import (
    MAX_PUBLISH_WAIT,
    publish_at,
    publish_hangs_at,
    publish_silent,
)
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import Phase
from unstuck.tasks.duration import format_duration


def watch(draft: Draft, phase: Phase) -> bool:
    """Start a try of this ``phase`` if one is due. Return whether it was started.

    The record is written before the action, so another coordinator continues after a crash.
    """
    job, now = draft.job, draft.env.now
    new_try = job.phase is not phase
    at_once = phase.aborts and not job.phase.aborts  # the wait was for a try to publish
    if publish_at(job, draft.env) > now and not at_once:
        return False
    # If the try begins, or no coordinator watched it, its time counts from now.
    watched = not new_try and publish_silent(job, draft.env) > 0.0
    job = replace(job, phase=phase, publish_heard=job.publish_heard if watched else now)
    draft.job = replace(
        job, publish_next=min(now + draft.env.publish_timeout, publish_hangs_at(job))
    )
    draft.decision.new_try = new_try
    return True


def goes_on(draft: Draft) -> None:
    """Record that a try is active, even if it counted as hanging; it is monitored from now on."""
    now = draft.env.now
    draft.job = replace(
        draft.job,
        phase=Phase.PUBLISHING,
        publish_heard=now,
        publish_next=now + draft.env.publish_timeout,
    )


def trouble(draft: Draft, why: Reason) -> None:
    """Record that a try failed. The wait before the next try doubles each time."""
    tries = draft.job.publish_tries + 1
    at = draft.env.now + min(MAX_PUBLISH_WAIT, 2.0 ** min(tries, 6))
    phase = Phase.ABORT_RETRYING if draft.job.phase.aborts else Phase.RETRYING
    since = draft.job.publish_troubled_since or draft.env.now
    draft.job = replace(
        draft.job,
        phase=phase,
        publish_tries=tries,
        publish_next=at,
        publish_troubled_since=since,
        reason=why,
    )
    draft.tell("PUBLISH_TROUBLE", code=why.code, text=why.text)


def no_answer(draft: Draft) -> PublishResult | None:
    """Return a failure for a try that counts as hanging; None before that."""
    job, now = draft.job, draft.env.now
    silent = publish_silent(job, draft.env)
    if not silent or now < publish_hangs_at(job) or publish_at(job, draft.env) > now:
        return None
    what = "the warehouse, asked whether the package stands," if job.phase.aborts else "publishing"
    why = "the warehouse hangs or is slow, or the coordinator that published died"
    return PublishResult(
        trouble=Reason(
            "PUBLISH_HANGS", f"{what} has not answered for {format_duration(silent)}: {why}"
        )
    )
