"""Ends a job whose groups are all done: the job fails, or publishes and becomes FINISHED."""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide import publishing
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, Phase, Status
from unstuck.coordinator.spec.problems import counted, listed
from unstuck.tasks.spec.outputs import REJECTED

_INTENDED = {
    Intent.STOP: (
        Status.STOPPED,
        Reason("USER_STOPPED", "stopped by the user; nothing was published"),
    ),
    Intent.CANCEL: (
        Status.CANCELED,
        Reason("USER_CANCELED", "canceled by the user; nothing was published"),
    ),
    Intent.FORCE_STOP: (
        Status.CANCELED,
        Reason("FORCE_STOPPED", "stopped by force; nothing was published"),
    ),
}


def complete(draft: Draft) -> None:
    """End a job whose groups are all done, or publish it."""
    intent, job = draft.job.intent, draft.job
    if intent is Intent.PAUSE and not job.phase:
        return  # nothing begins under a pause, not even publishing
    if intent in _INTENDED:
        end_as_intended(draft)
    elif job.timed_out is not None:
        finish(draft, Status.FAILED, job.timed_out)
    elif draft.state.fatal:
        finish(draft, Status.FAILED, _failure(draft.state))
    elif job.phase:
        _take_result(draft, draft.env.published or publishing.no_answer(draft))
    elif draft.state.without_outputs and draft.env.published is None:
        finished(draft, PublishResult())
    else:
        # A result for a job that is not publishing belongs to a record that a rollback of the
        # store has undone.
        draft.tell("PUBLISHING")
        _take_result(draft, None)


def _take_result(draft: Draft, result: PublishResult | None) -> None:
    """Apply the result of a try of publishing, or begin a try."""
    if result is None:
        draft.decision.publish = publishing.watch(draft, Phase.PUBLISHING)
    elif result.goes_on:
        publishing.goes_on(draft)
    else:
        published(draft, result)


def _failure(state: JobState) -> Reason:
    """Return why a job fails: its first failed group."""
    group_id = state.first_failed
    record = state.groups[group_id]
    error, reason = record.first_error, record.reason
    if error is None or (reason is not None and reason.code == "QUEUE_TIMEOUT"):
        # The group never ran, or not this time: an earlier error is not the reason of the failure.
        cause = reason.text if reason else "no reason"
    elif reason is not None and reason.code == "POISON":
        cause = f"POISON: {reason.text}"
        if record.failures:  # a lost worker never hides the user's own error
            cause += f"; its first error: {error.code}: {error.text}"
    else:
        cause = f"{error.code}: {error.text}"
    others = len(state.fatal) - 1
    more = f" (and {counted(others, 'more group')} failed)" if others else ""
    return Reason("GROUP_FAILED", f"group {group_id} failed: {cause}{more}")


def end_as_intended(draft: Draft) -> None:
    """End a job as stopped or canceled, unless its package is published.

    If the job is publishing, the warehouse log decides.
    """
    status, reason = _INTENDED[draft.job.intent]
    if draft.job.phase:
        result = _abort_result(draft)
        if result is None:
            if publishing.watch(draft, Phase.ABORTING):
                draft.decision.abort = reason
            return
        if result.trouble is not None or (result.failed is None and result.version):
            published(draft, result)
            return
        # A result without a version does not decide: there is no package, and there may be an
        # ABORT.
    if draft.job.timed_out is not None and draft.job.intent is Intent.STOP:
        reason = Reason(reason.code, f"{reason.text}; what still ran at its timeout was ended")
    finish(draft, status, reason)


def _abort_result(draft: Draft) -> PublishResult | None:
    """Return the result of publishing for a job that the user ends; None to wait for one."""
    result = draft.env.published
    if result is not None and not result.goes_on:
        return result
    # A publisher that is still running publishes a package that the user no longer wants.
    return publishing.no_answer(draft) if draft.job.phase.aborts else None


def published(draft: Draft, result: PublishResult) -> None:
    if result.failed is not None:
        finish(draft, Status.FAILED, result.failed)
    elif result.trouble is not None:
        publishing.trouble(draft, result.trouble)
    else:
        finished(draft, result)


def finished(draft: Draft, result: PublishResult) -> None:
    """End a job as FINISHED: its package is published, or it has nothing to publish."""
    replaced = dict(result.replaced)
    draft.job = replace(
        draft.job,
        version=result.version,
        published=dict(result.rows),
        replaced=replaced,
        left=result.left,
        published_at=result.at,
    )
    what = _unpublished(draft, result)
    if result.version:
        what = f" and published as version {result.version}"
        changes = (record.since for record in draft.state.groups.values())
        draft.decision.publishing = draft.env.now - max(changes, default=draft.env.now)
    for name, owner in sorted(result.taken_over.items()):
        what += f". It took {name} over from job {owner}"
    for name, replacement in sorted(replaced.items()):
        if replacement.shrunk:
            lost = replacement.text(shrunk=True, limit=3)
            what += (
                f". Warning: partitions of {name} have lost more than half of their rows: {lost}"
            )
    finish(draft, Status.FINISHED, Reason("DONE", f"all groups are done{what}"))


def _unpublished(draft: Draft, result: PublishResult) -> str:
    """Describe the outputs that were not published, and how to publish them."""
    if result.nothing_new:
        return f", and there is no new version: {result.nothing_new}"
    records = draft.state.groups.values()
    rejected = {name + REJECTED for record in records for name in record.rejected}
    outputs = sorted({output for record in records for output in record.rows} - rejected)
    if not outputs:
        return "; there was nothing to publish"
    return (
        f"; nothing was published of the outputs {listed(outputs)}: name those to publish under "
        "publish: in the spec"
    )


def finish(draft: Draft, status: Status, reason: Reason) -> None:
    draft.job = replace(
        draft.job, status=status, reason=reason, ended_at=draft.env.now, phase=Phase.NONE
    )
    draft.tell(status, code=reason.code, text=reason.text)
