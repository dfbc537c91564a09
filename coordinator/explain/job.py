"""Explains why a job, and each of its unfinished groups, waits. Pure.

Joins, due times, limits and budgets come from the functions that ``decide`` uses, so an explanation
cannot disagree with a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unstuck.coordinator.decide.intent import cancel_at
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at, publish_at, publish_hangs_at
from unstuck.coordinator.explain.explanation import (
    NOTHING_KNOWN,
    Event,
    Explanation,
    FleetFacts,
    Idle,
)
from unstuck.coordinator.explain.explanation_facts import (
    A_PERSON,
    ExplanationFacts,
    ahead,
    stands_still,
    timeout_of,
    ways_to_end,
)
from unstuck.coordinator.explain.groups import explain_group
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.tasks.duration import format_duration

S = GroupState
MAX_MEMBERS_SHOWN = 20  # of one fork
LONELY_S = 5.0  # a job or an offer that nobody takes is reported after this time
MAX_GROUPS_NAMED = 3  # in the line of a job
AGAIN = "all groups are checked again, also for lost workers"


def explain(
    state: JobState,
    env: Environment,
    due: float | None,
    members: int | None = MAX_MEMBERS_SHOWN,
    fleet: FleetFacts = NOTHING_KNOWN,
) -> list[Explanation]:
    """Explain the job, then every group that is unfinished or was skipped by its own condition.

    Groups follow the order of the spec.

    Args:
        due: when the job is decided again at the latest; None if it has ended.
        members: explain at most this many members of each fork; None: all.
    """
    if state.damage and not state.job.terminal:
        return [_damaged(state, env, due)]
    if state.job.terminal:
        return [_ended(state.job, fleet.again)]
    job = explain_job(state, env, due)
    if fleet.code:
        job = replace(job, what=f"{job.what}; {fleet.code}", help=("unstuck fleet", *job.help))
    facts = ExplanationFacts(state, env, due, fleet)
    explanations: list[Explanation] = []
    for name, planned in state.plan.groups.items():
        explanations.extend(explain_group(facts, name, planned, members))
    alone = _nobody_looks(env, due, fleet.idle)
    brief = _brief(state, env, alone, explanations)
    if alone:
        helps = ("celery -A unstuck.coordinator worker -P threads", "unstuck doctor", *job.help)
        unheard = replace(job, what=f"{job.what}; {alone}", short=brief, help=helps)
        return [_without_a_coordinator(each) for each in (unheard, *explanations)]
    timed = state.job.phase in (Phase.RETRYING, Phase.ABORT_RETRYING) and state.job.halted is None
    return [replace(job, short=brief, timed=timed), *explanations]


def _damaged(state: JobState, env: Environment, due: float | None) -> Explanation:
    job = state.job
    return Explanation(
        subject=job.id,
        state=job.status,
        what=state.damage,
        since=job.paused_at,
        next=Event(what="a coordinator looks at it again", at=ahead(0.0, env, due)),
        ends=Event(what=A_PERSON),
        help=(f"unstuck force-stop {job.id}",) if job.intent is not Intent.FORCE_STOP else (),
    )


def _without_a_coordinator(explained: Explanation) -> Explanation:
    """Remove the times of an explanation, since nothing happens before a coordinator looks."""
    if not explained.next.what:
        return explained
    following = Event(what=f"as soon as a coordinator looks: {explained.next.what}")
    return replace(explained, next=following, ends=Event(what=explained.ends.what), timed=False)


def explain_job(state: JobState, env: Environment, due: float | None) -> Explanation:
    """Explain the job alone; its groups may be unreadable."""
    job = state.job
    if job.terminal:
        return _ended(job, None)
    if job.halted is not None and (stands_still(job) or job.status is Status.HALTED):
        return _halted(state, job.halted, env, due)
    if job.phase:
        return _publishing(state, env, due)
    if job.intent is Intent.PAUSE:
        return _paused(state, env, due)
    if job.intent is not Intent.RUN:
        return _ending(state, env, due)
    return _running(state, env, due)


def _ended(job: JobRecord, again: tuple[str, ...] | None) -> Explanation:
    what = job.reason.text if job.reason else f"it is {job.status}"
    if job.intent is not Intent.RUN:
        what += f"; {job.intent_by} asked for {job.intent}{_because(job)}"
    helps: tuple[str, ...] = ()
    if job.status is not Status.FINISHED:
        # With the stored spec, a retry may fail in the same way.
        retry = f"unstuck retry {job.id}"
        commands = (retry, f"{retry} --spec FILE") if again is None else again
        helps = *commands, f"unstuck events {job.id}", f"unstuck logs {job.id}"
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        since=job.ended_at,
        ends=Event(what="it has ended; this is final"),
        help=helps,
    )


def _halted(state: JobState, halted: Reason, env: Environment, due: float | None) -> Explanation:
    job = state.job
    what, following = halted.text, "it is looked at, and nothing is decided before a resume"
    if job.intent is Intent.PAUSE:
        what += (
            f"; before that {job.intent_by} had paused it{_because(job)}, which a resume ends, too"
        )
    elif job.intent is not Intent.RUN:
        what += f"; {job.intent_by} asked for {job.intent.command}{_because(job)}"
        following = f"the {job.intent.command} is tried again"
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        since=job.paused_at or job.intent_at,
        next=Event(what=following, at=ahead(0.0, env, due)),
        ends=Event(what=A_PERSON),
        help=_resume_or_cancel(job) if stands_still(job) else ways_to_end(job),
    )


def _paused(state: JobState, env: Environment, due: float | None) -> Explanation:
    job = state.job
    what = f"{job.intent_by} paused it{_because(job)}"
    if job.status is Status.PAUSING:
        now = "being interrupted" if job.pause_now else "still running and may end"
        what += f"; {_attempts(state, f'is {now}', f'are {now}')}"
    ends = A_PERSON
    if state.plan.timeout is not None:
        ends += (
            "; the time that it stands PAUSED does not count towards its "
            f"{timeout_of(state.plan.timeout)}"
        )
    next_what = "all groups are checked again, and nothing is started before a resume"
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        since=job.intent_at,
        next=Event(what=next_what, at=ahead(0.0, env, due)),
        ends=Event(what=ends),
        help=_resume_or_cancel(job),
    )


def _ending(state: JobState, env: Environment, due: float | None) -> Explanation:
    """Explain a job that the user ended while some attempts run."""
    job, look_at = state.job, ahead(0.0, env, due)
    open_attempts = _attempts(state, "has not ended yet", "have not ended yet")
    what = f"{job.intent_by} asked for {job.intent}{_because(job)}; {open_attempts}"
    if job.halted is not None:
        what += f"; before that: {job.halted.text}"
    if job.intent is Intent.STOP:
        over = job_timeout_at(job, state.plan.timeout, env) or 0.0
        before = f" before the job's {timeout_of(state.plan.timeout)}" if over else ""
        ends = Event(what=f"when they have ended; they are not interrupted{before}", at=over)
    elif job.intent is Intent.FORCE_STOP:
        ends = Event(what="when it is looked at next", at=look_at)
    else:
        deadline = f"at the deadline, {format_duration(env.cancel_deadline)} after it was asked"
        ends = Event(what=deadline, at=max(cancel_at(job, env), env.now))
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        since=job.intent_at,
        next=Event(what=AGAIN, at=look_at),
        ends=ends,
        help=ways_to_end(job),
    )


def _running(state: JobState, env: Environment, due: float | None) -> Explanation:
    job, look_at = state.job, ahead(0.0, env, due)
    left = state.size - sum(len(groups) for s, groups in state.by_state.items() if s.terminal)
    what = f"{left} of {state.size} groups {'is' if left == 1 else 'are'} not done"
    if state.recovering:
        again = len(state.recovering)
        lost = "was lost and is" if again == 1 else "were lost and are"
        what += f"; {again} failed or {lost} tried again"
    if job.timed_out is not None:
        what += f"; {job.timed_out.text}"
    elif state.fatal:
        rest = "what runs after a failure has" if state.plan.cancel_others else "the others have"
        what += f"; group {state.first_failed} failed, so the job will be FAILED once {rest} ended"
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        since=job.started_at or job.submitted_at,
        next=Event(what=AGAIN, at=look_at),
        ends=_running_ends(state, env, look_at),
        help=ways_to_end(job),
    )


def _running_ends(state: JobState, env: Environment, look_at: float) -> Event:
    """Return the end of a running job: that of its groups, or its timeout."""
    if state.job.timed_out is not None:
        return Event(what="when it is looked at next", at=look_at)
    if state.plan.timeout is None:
        return Event(what="when its groups do")
    over = job_timeout_at(state.job, state.plan.timeout, env) or 0.0
    begins = "" if over else " from its first claimed attempt"
    timeout = timeout_of(state.plan.timeout)
    return Event(what=f"when its groups do; or FAILED by its {timeout}{begins}", at=over)


def _publishing(state: JobState, env: Environment, due: float | None) -> Explanation:
    job, at = state.job, publish_at(state.job, env)
    what = "all groups are done; the package could not be published yet"
    next_what = "publishing is tried again"
    if job.phase.aborts:
        what = (
            f"{job.intent_by} asked for {job.intent} while it published; the warehouse log is "
            "asked which was first"
        )
    elif job.phase.under_way:
        what = "all groups are done; the package is being published"
    if job.phase.under_way:
        what += f", last heard of {format_duration(max(0.0, env.now - job.publish_heard))} ago"
        next_what = "if the coordinator that publishes has died, another does"
        if at >= publish_hangs_at(job):
            next_what = (
                "if nothing is heard of it by then, it counts as hanging, and is tried "
                "again beside it"
            )
    times = "once" if job.publish_tries == 1 else f"{job.publish_tries} times"
    tried = f"tried {times}: {job.reason.text}" if job.publish_tries and job.reason else ""
    return Explanation(
        subject=job.id,
        state=job.status,
        what=what,
        # When the last group ended.
        since=max((record.since for record in state.groups.values()), default=0.0),
        tried=tried,
        next=Event(what=next_what, at=ahead(at, env, due)),
        ends=Event(
            what="never by itself: what is done is not thrown away because the warehouse is away"
        ),
        help=("unstuck doctor", *(() if job.phase.aborts else ways_to_end(job))),
    )


def _because(job: JobRecord) -> str:
    return f" ({job.intent_why})" if job.intent_why else ""


def _resume_or_cancel(job: JobRecord) -> tuple[str, ...]:
    return (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")


def _attempts(state: JobState, singular: str, many: str) -> str:
    return (
        f"1 attempt {singular}"
        if len(state.active) == 1
        else f"{len(state.active)} attempts {many}"
    )


def _brief(state: JobState, env: Environment, alone: str, groups: Sequence[Explanation]) -> str:
    """Describe the wait of an open job in one line for listings; empty if its explanation is short.

    Args:
        alone: the answer of `_nobody_looks`.
        groups: the explanations of its groups, with their lines.
    """
    job = state.job
    if job.halted is not None and job.status is Status.HALTED:
        return job.halted.text
    if job.phase and not job.phase.aborts:
        return _brief_publishing(job)
    if job.intent is not Intent.RUN:
        return ""
    if job.commit == "new" and env.now - job.submitted_at > LONELY_S:
        return "no coordinator has looked at this job yet; start a fleet with `unstuck up`"
    if alone:
        return alone
    if state.recovering:
        return _recovering(state)
    return _stuck(state, env, groups) or _at_work(state)


def _brief_publishing(job: JobRecord) -> str:
    if job.reason is None:
        return "publishing"
    again = f"publishing, try {job.publish_tries + 1}, after: " if job.phase.under_way else ""
    return f"{again}{job.reason.text}"


def _stuck(state: JobState, env: Environment, groups: Sequence[Explanation]) -> str:
    """Describe the first group that nobody takes while nothing runs; empty if there is none."""
    if state.by_state[S.RUNNING] or state.by_state[S.CANCELING]:
        return ""
    for group in groups:
        if group.state == S.QUEUED and env.now - group.since > LONELY_S:
            return f"{group.subject}: {group.short or group.what}"
    return ""


def _nobody_looks(env: Environment, due: float | None, idle: Idle) -> str:
    """Return a sentence if no coordinator looks at a job, else an empty text.

    Nothing is missing before the limit of ``idle``.

    Args:
        due: when the job is to be decided; None if it has ended.
        idle: how long no coordinator has looked at any job.
    """
    if due is not None and due < env.now - idle.limit:
        return (
            f"it was due {format_duration(env.now - due)} ago and nobody looks: is a "
            "coordinator running?"
        )
    if due is not None and idle.seconds > idle.limit:
        return (
            f"no coordinator has looked at any job for {format_duration(idle.seconds)}: is one "
            "running?"
        )
    return ""


def _recovering(state: JobState) -> str:
    """Describe the first group that is tried again, and count the others."""
    troubled = [name for name in state.recovering if state.record(name).last_error is not None]
    if not troubled:
        return ""
    first = state.record(troubled[0])
    error = first.last_error.text if first.last_error is not None else ""
    more = f"; so are {len(troubled) - 1} more" if len(troubled) > 1 else ""
    return (
        f"{troubled[0]} is tried again ({first.state.lower()}, attempt {first.epoch}) after: "
        f"{error}{more}"
    )


def _at_work(state: JobState) -> str:
    at_work = [
        (name, s)
        for s in (S.RUNNING, S.CANCELING, S.BACKOFF, S.QUEUED)
        for name in state.by_state[s]
    ]
    if not at_work:
        return ""
    more = f" and {len(at_work) - MAX_GROUPS_NAMED} more" if len(at_work) > MAX_GROUPS_NAMED else ""
    names = ", ".join(f"{name} ({group_state})" for name, group_state in at_work[:MAX_GROUPS_NAMED])
    return f"waits for {names}{more}"
