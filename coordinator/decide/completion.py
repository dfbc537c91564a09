"""The end of a job: when all groups are done it fails or publishes, and only a published job is FINISHED."""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.deadlines import (
    MAX_PUBLISH_WAIT,
    PUBLISHING,
    publish_at,
    publish_hangs_at,
    publish_silent,
)
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import Intent, Status
from unstuck.coordinator.spec.problems import listed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.outputs import REJECTED

_INTENDED = {
    Intent.STOP: (Status.STOPPED, Reason("USER_STOPPED", "stopped by the user; nothing was published")),
    Intent.CANCEL: (Status.CANCELED, Reason("USER_CANCELED", "canceled by the user; nothing was published")),
    Intent.FORCE_STOP: (Status.CANCELED, Reason("FORCE_STOPPED", "stopped by force; nothing was published")),
}


def complete(draft: Draft) -> None:
    """All groups are done: the job ends as the user intended, fails, or is published."""
    intent = draft.job.intent
    if intent is Intent.PAUSE and draft.job.phase != PUBLISHING:
        return  # nothing begins under a pause, not even publishing
    if intent in (Intent.STOP, Intent.CANCEL, Intent.FORCE_STOP):
        end_as_intended(draft)
        return
    if draft.job.timed_out is not None:
        finish(draft, Status.FAILED, draft.job.timed_out)
        return
    if draft.state.fatal:
        group_id = next(iter(draft.state.fatal))
        record = draft.state.groups[group_id]
        error, reason = record.first_error, record.reason
        if error is None or (reason is not None and reason.code == "QUEUE_TIMEOUT"):
            # The group never ran, or not this time: an earlier error is not the reason of the failure.
            said = reason.text if reason else "no reason"
        elif reason is not None and reason.code == "POISON":
            said = f"POISON: {reason.text}"
            if record.failures:  # a lost worker never hides the user's own error
                said += f"; its first error: {error.code}: {error.text}"
        else:
            said = f"{error.code}: {error.text}"
        others = len(draft.state.fatal) - 1
        more = f" (and {others} more group{'s' if others > 1 else ''} failed)" if others else ""
        finish(draft, Status.FAILED, Reason("GROUP_FAILED", f"group {group_id} failed: {said}{more}"))
        return
    # A result for a job that is not publishing belongs to a record that a rollback of the store has undone.
    result = draft.env.published if draft.job.phase == PUBLISHING else None
    if draft.job.phase != PUBLISHING:
        if draft.state.without_outputs and draft.env.published is None:
            finished(draft, PublishResult())
            return
        draft.job = replace(draft.job, phase=PUBLISHING)
        draft.tell("PUBLISHING")
    result = result or _no_answer(draft)
    if result is not None and result.goes_on:
        # A sign of life, perhaps of a try that counted as hanging. The try is watched as before.
        now = draft.env.now
        draft.job = replace(draft.job, publish_heard=now, publish_next=now + draft.env.publish_timeout)
    elif result is not None:
        published(draft, result)
    elif publish_at(draft.job, draft.env) <= draft.env.now:
        _publish(draft)
        draft.decision.publish = True


def _publish(draft: Draft) -> None:
    """Publish: the coordinator that began the current try continues it; another coordinator begins a new try.

    The record is written before the action, so another coordinator follows one that dies during the action.
    """
    job, now = draft.job, draft.env.now
    draft.decision.new_try = not job.publish_heard
    # If the try begins, or no coordinator watched it, its time counts from now.
    job = replace(job, publish_heard=job.publish_heard if publish_silent(job, draft.env) else now)
    draft.job = replace(job, publish_next=min(now + draft.env.publish_timeout, publish_hangs_at(job)))


def _no_answer(draft: Draft) -> PublishResult | None:
    """The result of a try that has not answered for so long that it counts as hanging; None before that.

    The record alone decides: the coordinators that publish cannot be asked, and may be dead.
    """
    silent, now = publish_silent(draft.job, draft.env), draft.env.now
    if not silent or now < publish_hangs_at(draft.job) or publish_at(draft.job, draft.env) > now:
        return None
    what = "the warehouse, asked whether the package stands," if draft.job.aborting else "publishing"
    why = "the warehouse hangs or is slow, or the coordinator that published died"
    return PublishResult(
        trouble=Reason("PUBLISH_HANGS", f"{what} has not answered for {format_duration(silent)}: {why}")
    )


def end_as_intended(draft: Draft) -> None:
    """Stopped or canceled, unless the package stands already: for a job in publishing the slot in the log decides."""
    status, reason = _INTENDED[draft.job.intent]
    result = draft.env.published
    if draft.job.phase == PUBLISHING:
        if result is not None and result.goes_on:
            result = None  # that try publishes a package that the user does not want any more
        if result is None and draft.job.aborting:
            result = _no_answer(draft)
        if result is None:
            if not draft.job.aborting:  # an abort, after a try of publishing
                draft.job = replace(draft.job, aborting=True, publish_heard=0.0, publish_next=0.0)
            if publish_at(draft.job, draft.env) <= draft.env.now:
                _publish(draft)
                draft.decision.abort = reason
            return
        if result.trouble is not None or (result.failed is None and result.version):
            published(draft, result)
            return
        # Nothing to publish (version 0) does not decide: no package stands, and an ABORT may stand already.
    if draft.job.timed_out is not None and draft.job.intent is Intent.STOP:
        reason = Reason(reason.code, f"{reason.text}; what still ran at its timeout was ended")
    finish(draft, status, reason)


def published(draft: Draft, result: PublishResult) -> None:
    if result.failed is not None:
        finish(draft, Status.FAILED, result.failed)
    elif result.trouble is not None:
        tries = draft.job.publish_tries + 1
        at = draft.env.now + min(MAX_PUBLISH_WAIT, 2.0 ** min(tries, 6))
        draft.job = replace(draft.job, publish_tries=tries, publish_next=at, publish_heard=0.0, reason=result.trouble)
        draft.tell("PUBLISH_TROUBLE", code=result.trouble.code, text=result.trouble.text)
    else:
        finished(draft, result)


def finished(draft: Draft, result: PublishResult) -> None:
    """All groups are done, and what was to be published is."""
    rows, replaced = dict(result.rows), dict(result.replaced)
    draft.job = replace(draft.job, version=result.version, published=rows, replaced=replaced)
    what = f" and published as version {result.version}" if result.version else _unpublished(draft)
    warnings = [
        f". Warning: partitions of {name} have lost more than half of their rows: {one.text(shrunk=True, most=3)}"
        for name, one in sorted(replaced.items())
        if one.shrunk
    ]
    finish(draft, Status.FINISHED, Reason("DONE", f"all groups are done{what}{''.join(warnings)}"))


def _unpublished(draft: Draft) -> str:
    """Which outputs exist and were not published, and how to publish them."""
    records = draft.state.groups.values()
    rejected = {name + REJECTED for record in records for name in record.rejected}
    outputs = sorted({output for record in records for output in record.rows} - rejected)
    if not outputs:
        return "; there was nothing to publish"
    return f"; nothing was published of the outputs {listed(outputs)}: name those to publish under publish: in the spec"


def finish(draft: Draft, status: Status, reason: Reason) -> None:
    draft.job = replace(draft.job, status=status, reason=reason, ended_at=draft.env.now, phase="", publish_heard=0.0)
    draft.tell(status, code=reason.code, text=reason.text)
