"""Overtime: what waits in a queue, or takes as a whole, longer than its spec allows, is given up.

The user's word stands above every timeout: nothing is given up under a pause, a cancel or a force-stop. The time of a
step and of a group's steps is held by the watchdog beside the runner (``tasks.watchdog.policy``), not here.
"""

from __future__ import annotations

from dataclasses import replace

from unstuck.coordinator.decide.deadlines import CLOCK_SLACK, job_timeout_at, queue_timeout_at
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intent import unclaimed
from unstuck.coordinator.model.decision import Guard
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.tasks.duration import format_duration

S = GroupState


def give_up_queued(draft: Draft) -> None:
    """QUEUED without a claim for longer than ``queue_timeout``: FAILED for good, the same queue would not help.

    A claim that arrives in between wins, since the commit checks once more that there is none. After an outage of the
    sweep, in which perhaps nobody could claim, runners have one lease term to do so, as they have to renew.
    """
    if not draft.world.takeover:
        return
    for group_id in unclaimed(draft):
        record, spec = draft.state.record(group_id), draft.planned(group_id).spec
        at = queue_timeout_at(draft.job, record, spec.queue_timeout, draft.world)
        if at is None or spec.queue_timeout is None:
            continue
        if record.since > draft.world.now + CLOCK_SLACK:
            # The clock was set back. Counted anew: what has come early here would be a failure of nobody's making.
            draft.put(group_id, replace(record, since=draft.world.now))
        elif at <= draft.world.now:
            if draft.full_up():
                return
            reason = _unserved(draft, spec.queue_name, spec.queue_timeout)
            draft.decision.guards.append(Guard(group_id, record.epoch, record.nonce, "unclaimed"))
            draft.drop_attempt(group_id)
            draft.move(group_id, replace(record, state=S.FAILED, reason=reason))


def _unserved(draft: Draft, queue: str, seconds: float) -> Reason:
    slots = draft.world.slots.get(queue, 0)
    if slots:
        who = f"{slots} runner{'s' if slots > 1 else ''} listen on queue {queue}"
        what = "they were busy: start more workers, or raise queue_timeout:"
    else:
        who = f"no runner listens on queue {queue}"
        what = f"start one (celery -A unstuck.tasks worker -Q {queue}) and submit the job again"
    text = f"nobody took it within its queue_timeout of {format_duration(seconds)}; {who}; {what} (not worth a retry)"
    return Reason("QUEUE_TIMEOUT", text)


def call_time(draft: Draft) -> None:
    """Note that the job's time is over. From then on it ends, in however many commits.

    Whatever is not done is canceled then (``ending.cancel_all``). Running attempts become stale at once: an order would
    wait for runners that may be the very reason why the time ran out.

    Noted on the record, and not asked of the clock again: a clock that is set back between two of those commits must
    not let what is half canceled go on and publish.
    """
    job = draft.job
    at = job_timeout_at(job, draft.plan.timeout, draft.world)
    if at is None or at > draft.world.now or not draft.state.open_groups:
        return
    if draft.doomed and job.intent is Intent.RUN:
        return  # it is ending already, for a reason of its own
    text = f"the job ran longer than its timeout of {format_duration(draft.plan.timeout or 0.0)}"
    if draft.state.fatal:
        first = next(iter(draft.state.fatal))
        more = len(draft.state.fatal) - 1
        text += f"; before that group {first}{f' and {more} more' if more else ''} had failed"
    reason = Reason("JOB_TIMEOUT", f"{text}; raise timeout: of the job or make it smaller")
    draft.job = replace(job, timed_out=reason)
    draft.tell("JOB_TIMEOUT", code=reason.code, text=reason.text)


def keep_time(job: JobRecord, now: float) -> JobRecord:
    """``job``, whose status is that of now, with the time that its timeout counts: all but what it stood PAUSED.

    A time that lies further ahead than it can was written before the clock was set back; it is counted from now.
    """
    counted_from, paused_at = (at if at <= now + CLOCK_SLACK else now for at in (job.counted_from, job.paused_at))
    if job.started_at and not counted_from:
        counted_from = now
    if job.status is Status.PAUSED:
        paused_at = paused_at or now
    elif paused_at:
        if job.counted_from:
            counted_from += max(0.0, now - paused_at)
        paused_at = 0.0
    return replace(job, counted_from=counted_from, paused_at=paused_at)
