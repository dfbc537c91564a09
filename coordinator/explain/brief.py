"""Brief: what an explanation says in one line, for listings. Pure; ``explain`` asks it, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.coordinator.decide.deadlines import PUBLISHING
from unstuck.coordinator.explain.explanation import Explanation, Idle
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.tasks.duration import format_duration

S = GroupState
LONELY = 5.0  # seconds after which a job or a hint that nobody has taken is worth a word
NAMED = 3  # groups that a job's line names


def job_brief(state: JobState, env: Environment, alone: str, groups: Sequence[Explanation]) -> str:
    """What a job that has not ended waits for; empty where its explanation is short enough.

    Args:
        alone: that nobody looks, if so; see ``nobody_looks``.
        groups: the explanations of its groups, with their lines.
    """
    job = state.job
    if job.halted is not None:
        return f"halted: {job.halted.text}"
    if job.phase == PUBLISHING and not job.aborting:
        if job.reason is None:
            return "publishing"
        again = f"publishing, try {job.publish_tries + 1}, after: " if job.publish_heard else ""
        return f"{again}{job.reason.text}"
    if job.intent is not Intent.RUN:
        return ""
    if job.commit == "new" and env.now - job.submitted_at > LONELY:
        return "no coordinator has looked at this job yet; start a fleet with `unstuck up`"
    if alone:
        return alone
    if state.recovering:
        return _recovering(state)
    stuck = next((one for one in groups if one.state == S.QUEUED and env.now - one.since > LONELY), None)
    if stuck is not None and not (state.by_state[S.RUNNING] or state.by_state[S.CANCELING]):
        return f"{stuck.subject}: {stuck.short or stuck.what}"
    return _at_work(state)


def nobody_looks(env: Environment, due: float | None, idle: Idle) -> str:
    """That a job is looked at by nobody, if so.

    Args:
        due: when it is to be looked at; None if it has ended.
        idle: for how long no coordinator has looked at any job. Nobody counts as missing before its patience is over.
    """
    if due is not None and due < env.now - idle.patience:
        return f"it was due {format_duration(env.now - due)} ago and nobody looks: is a coordinator running?"
    if due is not None and idle.seconds > idle.patience:
        return f"no coordinator has looked at any job for {format_duration(idle.seconds)}: is one running?"
    return ""


def _recovering(state: JobState) -> str:
    """The first of the troubled groups, and how many more there are."""
    told = [name for name in state.recovering if state.record(name).last_error is not None]
    if not told:
        return ""
    first = state.record(told[0])
    error = first.last_error.text if first.last_error is not None else ""
    more = f"; {len(told) - 1} more recover" if len(told) > 1 else ""
    return f"{told[0]} recovers ({first.state.lower()}, attempt {first.epoch}) after: {error}{more}"


def _at_work(state: JobState) -> str:
    at_work = [(name, s) for s in (S.RUNNING, S.CANCELING, S.BACKOFF, S.QUEUED) for name in state.by_state[s]]
    if not at_work:
        return ""
    more = f" and {len(at_work) - NAMED} more" if len(at_work) > NAMED else ""
    return f"waits for {', '.join(f'{name} ({found})' for name, found in at_work[:NAMED])}{more}"
