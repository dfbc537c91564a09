"""Timeouts of the time in a queue and of the whole job.

The user's intent precedes every timeout: none applies under a pause, a cancel or a force-stop. The
watchdog beside the runner applies the timeouts of a step and of a group's steps
(``tasks.watchdog.policy``).
"""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.clock import CLOCK_SLACK
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at, queue_timeout_at
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import HELD, GroupState, Intent
from unstuck.coordinator.spec.problems import counted
from unstuck.tasks.duration import format_duration

S = GroupState


def check_queue_timeouts(draft: Draft) -> None:
    """Fail groups that no runner claimed within ``queue_timeout``.

    A retry in the same queue would not help.     A claim that arrives meanwhile wins, because the
    commit checks for claims again. After an outage of the sweep, runners have one lease term to
    claim.
    """
    if not draft.env.takeover:
        return
    for group_id in draft.unclaimed():
        record, spec = draft.state.record(group_id), draft.planned(group_id).spec
        at = queue_timeout_at(draft.job, record, spec.queue_timeout, draft.env)
        if at is None or spec.queue_timeout is None or draft.is_over(group_id):
            continue
        if record.since > draft.env.now + CLOCK_SLACK:
            # The clock was set back. The time is counted from now, or the group would fail too
            # early.
            draft.put(group_id, replace(record, since=draft.env.now))
        elif at <= draft.env.now:
            if draft.commit_is_full():
                return
            reason = _unserved(draft, spec.queue_name, spec.queue_timeout)
            draft.check_unclaimed(group_id)
            draft.end_attempt(group_id, S.FAILED, reason)


def _unserved(draft: Draft, queue: str, seconds: float) -> Reason:
    runners = draft.env.runners.get(queue, 0)
    if runners:
        listen = counted(runners, "runner listens", "runners listen")
        who = f"{listen} on queue {queue}"
        what = "they were busy: start more workers, or raise queue_timeout:"
    else:
        who = f"no runner listens on queue {queue}"
        what = f"start one (celery -A unstuck.tasks worker -Q {queue}) and submit the job again"
    text = (
        f"nobody took it within its queue_timeout of {format_duration(seconds)}; {who}; {what} "
        "(not worth a retry)"
    )
    return Reason("QUEUE_TIMEOUT", text)


def check_job_timeout(draft: Draft) -> None:
    """Record that the job's timeout expired, because the job may end in several commits.

    Running attempts become stale at once: an instruction would wait for runners that may have
    caused the timeout.
    """
    job = draft.job
    at = job_timeout_at(job, draft.plan.timeout, draft.env)
    if at is None or at > draft.env.now or not draft.state.open_groups:
        return
    if draft.failing_fast and job.intent is Intent.RUN and not draft.state.outliving:
        return  # the job ends already, for another reason
    text = f"the job ran longer than its timeout of {format_duration(draft.plan.timeout or 0.0)}"
    if draft.state.fatal:
        first = draft.state.first_failed
        others = len(draft.state.fatal) - 1
        more = f" and {others} more" if others else ""
        text += f"; before that group {first}{more} had failed"
    reason = Reason("JOB_TIMEOUT", f"{text}; raise timeout: of the job or make it smaller")
    draft.job = replace(job, timed_out=reason)
    draft.tell("JOB_TIMEOUT", code=reason.code, text=reason.text)


def count_job_time(job: JobRecord, now: float) -> JobRecord:
    """Return ``job``, which has its new status, with the updated start of its timeout.

    Time in PAUSED and HALTED does not count. A time in the future was written before the clock was
    set back; it is replaced by now.
    """
    counted_from, paused_at = (
        at if at <= now + CLOCK_SLACK else now for at in (job.counted_from, job.paused_at)
    )
    if job.started_at and not counted_from:
        counted_from = now
    if job.status in HELD:
        paused_at = paused_at or now
    elif paused_at:
        if job.counted_from:
            counted_from += max(0.0, now - paused_at)
        paused_at = 0.0
    if (counted_from, paused_at) == (job.counted_from, job.paused_at):
        return job
    return replace(job, counted_from=counted_from, paused_at=paused_at)
