"""The rules, written down a second time, as plainly as can be: over the states of a job as they
stand.
"""

from __future__ import annotations

from typing import Any

from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.tasks.protocol.token import split_member

S = GroupState


def rule_holds(state: JobState, group: str) -> bool:
    """The join rule, by definition: over the members of everything it needs."""
    spec = state.plan.groups[split_member(group)[0]].spec
    states = [state.record(member).state for need in spec.needs for member in state.members(need)]
    succeeded, done = states.count(S.SUCCEEDED), all(s.terminal for s in states)
    if spec.join.rule in ("any_succeeded", "at_least"):
        return succeeded >= max(1, spec.join.count)
    if spec.join.rule == "all_done":
        return done
    if spec.join.rule in ("any_failed", "all_failed"):
        failed = sum(s in (S.FAILED, S.CANCELED) for s in states)
        return done and failed >= (len(states) if spec.join.rule == "all_failed" else 1)
    if spec.join.rule == "none_failed":
        return all(s in (S.SUCCEEDED, S.SKIPPED) for s in states)
    return succeeded == len(states)


def condition_says(state: JobState, group: str) -> bool | None:
    """What the condition of a group comes to, by definition; None if it cannot be evaluated.

    Of the forms in jobs.
    """
    plan, spec = state.plan, state.plan.groups[split_member(group)[0]].spec
    if spec.when is None:
        return True
    path, _, test = spec.when.partition(" ")
    root, *names = path.split(".")
    value: Any = {**plan.params, **spec.params}.get(names[-1])
    if root == "results":
        record = state.record(names[0])
        value = record.results.get(names[1]) if record.state is S.SUCCEEDED else None
    if test == "is none":
        return value is None
    if not test:
        return value if isinstance(value, bool) else None if value is not None else False
    return value > int(test.removeprefix("> ")) if isinstance(value, int) else None


def can_never_go(state: JobState, group: str) -> bool:
    """A quorum out of reach whatever comes; or a fork all of whose needs have ended without its
    values.
    """
    spec = state.plan.groups[group].spec
    states = [state.record(member).state for need in spec.needs for member in state.members(need)]
    open_forks = [
        need for need in spec.needs if state.fulls[need] is None and not state.ended_whole(need)
    ]
    if spec.join.rule in ("any_succeeded", "at_least"):
        possible = sum(1 for s in states if s is S.SUCCEEDED or not s.terminal)
        if not open_forks and possible < max(1, spec.join.count):
            return True
    source = spec.fork_from
    return (
        source is not None
        and source.source not in state.collected
        and all(s.terminal for s in states)
    )


def untold(state: JobState, env: Environment, due: float | None) -> str:
    """What of a job, or of its groups that are not done, cannot be explained, or is explained by
    what is not so.
    """
    job = state.job
    try:
        told = explain(state, env, due)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user would have seen it
        return f"{job.id} cannot be explained: {type(error).__name__}: {error}"
    for one in told:
        where = f"{job.id}/{one.subject} is {one.state}"
        if not one.what.strip() or "unknown" in one.what.lower():
            return f"{where}, and nobody can say why: {one.what!r}"
        if one.next.at and one.next.at < env.now:
            return f"{where}, and is said to be looked at next {env.now - one.next.at:.1f}s ago"
        waits = job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)
        if (
            waits
            and one.state == S.BACKOFF
            and (one.timed or one.next.at or "unstuck resume" not in str(one.help))
        ):
            return f"{where} and goes on by a resume, and it is explained by: {one}"
        if job.intent is Intent.RUN and job.halted is None and "paused" in one.what:
            return f"{where}, nothing is paused, and it is explained by: {one.what!r}"
    if job.terminal:
        return ""
    subjects = {one.subject for one in told}
    for name in state.plan.groups:
        for member in state.members(name):
            if not state.record(member).state.terminal and not {member, name} & subjects:
                return f"{job.id}/{member} is {state.record(member).state}, and nobody says why"
    return ""
