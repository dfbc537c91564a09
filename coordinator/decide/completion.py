"""The end of a job: when all groups are done it fails or publishes, and only a published job is
FINISHED.
"""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide import publishing
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, Phase, Status
from unstuck.coordinator.spec.problems import listed
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
    """All groups are done: the job ends as the user intended, fails, or is published."""
    intent = draft.job.intent
    if intent is Intent.PAUSE and not draft.job.phase:
        return  # nothing begins under a pause, not even publishing
    if intent in (Intent.STOP, Intent.CANCEL, Intent.FORCE_STOP):
        end_as_intended(draft)
        return
    if draft.job.timed_out is not None:
        finish(draft, Status.FAILED, draft.job.timed_out)
        return
    if draft.state.fatal:
        finish(draft, Status.FAILED, _failure(draft.state))
        return
    # A result for a job that is not publishing belongs to a record that a rollback of the store has
    # undone.
    result = (draft.env.published or publishing.no_answer(draft)) if draft.job.phase else None
    if not draft.job.phase:
        if draft.state.without_outputs and draft.env.published is None:
            finished(draft, PublishResult())
            return
        draft.tell("PUBLISHING")
    if result is not None and result.goes_on:
        publishing.goes_on(draft)
    elif result is not None:
        published(draft, result)
    else:
        draft.decision.publish = publishing.watch(draft, Phase.PUBLISHING)


def _failure(state: JobState) -> Reason:
    """Return why a job fails whose groups are done: its first failed group."""
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
    more = f" (and {others} more group{'s' if others > 1 else ''} failed)" if others else ""
    return Reason("GROUP_FAILED", f"group {group_id} failed: {cause}{more}")


def end_as_intended(draft: Draft) -> None:
    """Stopped or canceled, unless the package stands already: for a job in publishing the number in
    the log decides.
    """
    status, reason = _INTENDED[draft.job.intent]
    result = draft.env.published
    if draft.job.phase:
        if result is not None and result.goes_on:
            result = None  # that try publishes a package that the user does not want any more
        if result is None and draft.job.phase.aborts:
            result = publishing.no_answer(draft)
        if result is None:
            if publishing.watch(draft, Phase.ABORTING):
                draft.decision.abort = reason
            return
        if result.trouble is not None or (result.failed is None and result.version):
            published(draft, result)
            return
        # Nothing to publish (version 0) does not decide: no package stands, and an ABORT may stand
        # already.
    if draft.job.timed_out is not None and draft.job.intent is Intent.STOP:
        reason = Reason(reason.code, f"{reason.text}; what still ran at its timeout was ended")
    finish(draft, status, reason)


def published(draft: Draft, result: PublishResult) -> None:
    if result.failed is not None:
        finish(draft, Status.FAILED, result.failed)
    elif result.trouble is not None:
        publishing.trouble(draft, result.trouble)
    else:
        finished(draft, result)


def finished(draft: Draft, result: PublishResult) -> None:
    """All groups are done, and what was to be published is."""
    rows, replaced = dict(result.rows), dict(result.replaced)
    draft.job = replace(
        draft.job, version=result.version, published=rows, replaced=replaced, left=result.left
    )
    draft.job = replace(draft.job, published_at=result.at)
    what = (
        f" and published as version {result.version}"
        if result.version
        else _unpublished(draft, result)
    )
    warnings = [
        (
            f". Warning: partitions of {name} have lost more than half of their rows: "
            f"{replacement.text(shrunk=True, most=3)}"
        )
        for name, replacement in sorted(replaced.items())
        if replacement.shrunk
    ]
    if result.version:
        done_at = max(
            (record.since for record in draft.state.groups.values()), default=draft.env.now
        )
        draft.decision.publishing = draft.env.now - done_at
    taken = "".join(
        f". It took {name} over from job {owner}"
        for name, owner in sorted(result.taken_over.items())
    )
    finish(
        draft,
        Status.FINISHED,
        Reason("DONE", f"all groups are done{what}{taken}{''.join(warnings)}"),
    )


def _unpublished(draft: Draft, result: PublishResult) -> str:
    """Which outputs exist and were not published, and how to publish them."""
    if result.nothing_new:
        return f", and there is no new version: {result.nothing_new}"
    records = draft.state.groups.values()
    rejected = {name + REJECTED for record in records for name in record.rejected}
    outputs = sorted({output for record in records for output in record.rows} - rejected)
    if not outputs:
        return "; there was nothing to publish"
    return (
        f"; nothing was published of the outputs {listed(outputs)}: name those to publish "
        "under "
        "publish: in the spec"
    )


def finish(draft: Draft, status: Status, reason: Reason) -> None:
    draft.job = replace(
        draft.job, status=status, reason=reason, ended_at=draft.env.now, phase=Phase.NONE
    )
    draft.tell(status, code=reason.code, text=reason.text)
