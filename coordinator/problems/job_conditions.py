"""Computes since when a job has the conditions that become problems after a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState

S = GroupState
Onset = tuple[float, str]  # since when a condition holds, 0 if it does not; the group
NEVER: Onset = (0.0, "")


def _running(state: JobState, limit: float, now: float) -> Onset:
    return state.job.counted_from, ""


def _retrying(state: JobState, limit: float, now: float) -> Onset:
    if state.recovering:
        return min((state.groups[name].troubled_since, name) for name in state.recovering)
    return (state.job.publish_troubled_since if state.job.phase else 0.0), ""


def _waiting(state: JobState, limit: float, now: float) -> Onset:
    """Return the oldest offer on a queue that takes nothing of the job, and since when it waits."""
    oldest = _oldest_offers(state)
    if oldest and min(oldest.values())[0] + limit <= now:
        # An offer may have waited behind others: it counts from the last end on its queue.
        for name, record in state.groups.items():
            ended = record.epoch and record.state is not S.QUEUED
            if ended and (queue := _queue(state, name)) in oldest:
                since, first = oldest[queue]
                oldest[queue] = max(since, record.since), first
    return min(oldest.values(), default=NEVER)


def _oldest_offers(state: JobState) -> dict[str, Onset]:
    """Return the oldest unclaimed offer by queue, without queues on which the job runs."""
    oldest: dict[str, Onset] = {}
    for name in state.by_state[S.QUEUED]:
        attempt = state.attempts.get(name)
        if attempt is None or not attempt.claimant:
            queue, offer = _queue(state, name), (state.groups[name].since, name)
            oldest[queue] = min(oldest.get(queue, offer), offer)
    for name in (*state.by_state[S.RUNNING], *state.by_state[S.CANCELING]):
        oldest.pop(_queue(state, name), None)
    return oldest


def _queue(state: JobState, group: str) -> str:
    return state.planned(group).spec.queue_name


JOB_CONDITIONS: Mapping[str, Callable[[JobState, float, float], Onset]] = {
    "running_for": _running,
    "retrying_for": _retrying,
    "waiting_for_worker": _waiting,
}
