"""Computes when a job, a group or an attempt must be checked. Pure."""

from __future__ import annotations

from unstuck.coordinator.decide.intent import cancel_at
from unstuck.coordinator.decide.timers.backoff import LOSS_BACKOFF
from unstuck.coordinator.decide.timers.clock import come_if_beyond
from unstuck.coordinator.decide.timers.leases import lease_end
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import HELD, GroupState, Intent
from unstuck.tasks.spec.retry import RetryPolicy

S = GroupState
MAX_PUBLISH_WAIT = 60.0
# Seconds without a sign of life after which a try of publishing counts as hanging, at first.
PUBLISH_HANGS = 120.0
MAX_PUBLISH_HANGS = 900.0  # the same, at last
# Seconds between looks at a job without an attempt, beside the times on its record.
IDLE_LOOK = 600.0


def offer_again_at(record: GroupRecord, env: Environment) -> float:
    """Return when an offer that nobody has taken is repeated, since it may be lost."""
    return come_if_beyond(record.since, env.now) + env.dispatch_timeout


def retry_at(record: GroupRecord, policy: RetryPolicy, env: Environment) -> float:
    """Return when a group in BACKOFF may be tried again."""
    return come_if_beyond(record.next_at, env.now + max(policy.max_backoff, *LOSS_BACKOFF))


def queue_timeout_at(
    job: JobRecord, record: GroupRecord, queue_timeout: float | None, env: Environment
) -> float | None:
    """Return when an unclaimed group fails; None if never, or while no runner may claim it.

    A start in the future counts as now, so that the group does not fail too early.
    """
    if queue_timeout is None or job.intent is not Intent.RUN or job.halted is not None:
        return None
    return min(record.since, env.now) + queue_timeout


def job_timeout_at(job: JobRecord, timeout: float | None, env: Environment) -> float | None:
    """Return when the job's timeout expires; None if the timeout is not running.

    It is not running if the job has no timeout, has not started, publishes, or is held.
    """
    if timeout is None or not job.counted_from or job.timed_out is not None or job.phase:
        return None
    runs = job.intent is Intent.RUN and job.halted is None
    if not runs and job.intent is not Intent.STOP:
        return None
    # After a resume that is not applied yet, the time of the pause does not count.
    paused = max(0.0, env.now - job.paused_at) if job.paused_at else 0.0
    return min(job.counted_from, env.now) + paused + timeout


def publish_at(job: JobRecord, env: Environment) -> float:
    """Return when publishing is tried next, or when the active try must be checked."""
    return come_if_beyond(job.publish_next, env.now + max(env.publish_timeout, MAX_PUBLISH_WAIT))


def publish_hangs_at(job: JobRecord) -> float:
    """Return when the active try of publishing counts as hanging without a sign of life.

    Each try that hangs leaves a thread behind, so the limit grows with the tries.
    """
    return job.publish_heard + min(
        MAX_PUBLISH_HANGS, PUBLISH_HANGS * 2.0 ** min(job.publish_tries, 10)
    )


def publish_silent(job: JobRecord, env: Environment) -> float:
    """Return the seconds since the last sign of life of a try of publishing.

    0 without a try. If all coordinators were down, the try is lost, which says nothing about the
    warehouse.
    """
    if (
        not job.phase.under_way
        or job.publish_heard > env.now
        or env.now - job.publish_next > PUBLISH_HANGS
    ):
        return 0.0
    return env.now - job.publish_heard


def due_at(state: JobState, env: Environment, more: bool = False) -> float:
    """Return when a job is decided again without any event. Every open job has such a time.

    A job without an attempt, such as a paused one, can miss only a command, and a command makes the
    job due.
    """
    now = env.now
    if more:
        return now
    soon, later = now + 0.05, now + (IDLE_LOOK if _is_idle(state, env) else env.dispatch_timeout)
    times = [max(publish_at(state.job, env), soon) if state.job.phase else later]
    if state.by_state[S.CANCELING]:
        times.append(max(cancel_at(state.job, env), soon))
    times.append(job_timeout_at(state.job, state.plan.timeout, env) or 0.0)
    for group_id in state.active:
        times += _attempt_times(state, group_id, env)
    for group_id in state.by_state[S.BACKOFF]:
        times.append(retry_at(state.groups[group_id], state.planned(group_id).retry, env))
    # A time that has come but could not be used (no room, no allowance, a grace) needs no early
    # look: the event that makes room wakes the job.
    return max(min((at for at in times if at > now), default=later), soon)


def _is_idle(state: JobState, env: Environment) -> bool:
    """Return whether nothing of the job can happen without an event.

    A grace has no time of its own. Under a pause it holds nothing back.
    """
    if state.active or state.job.phase:
        return False
    return env.takeover or state.job.status in HELD


def _attempt_times(state: JobState, group_id: str, env: Environment) -> list[float]:
    """Return the times at which the attempt of a group needs a look; 0 for a time without one."""
    record, attempt = state.groups[group_id], state.attempts.get(group_id)
    if record.state is S.QUEUED:
        queue_timeout = state.planned(group_id).spec.queue_timeout
        given_up_at = queue_timeout_at(state.job, record, queue_timeout, env)
        return [offer_again_at(record, env), given_up_at or 0.0]
    if attempt is None:
        return []
    # A lapsed lease is looked at again after a moment, when a grace may end.
    lease = min(lease_end(record, attempt, env), env.now + env.lease_ttl)
    return [lease + 0.01 if lease > env.now else env.now + 0.5]
