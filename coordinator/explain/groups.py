"""Explain why each group of a job that is not done waits (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intent import cancel_at
from unstuck.coordinator.decide.joins import NOT_FAILED, JoinResult, judge
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at, queue_timeout_at, retry_at
from unstuck.coordinator.decide.timers.leases import lease_end
from unstuck.coordinator.explain.explanation import (
    A_PERSON,
    Event,
    Explanation,
    ExplanationFacts,
    stands_still,
    timeout_of,
)
from unstuck.coordinator.explain.stack_words import stage_told, stands_at
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.spec.condition import quoted
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.coordinator.spec.problems import listed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import pool_of, queue_of

S = GroupState
LONG = 4.0  # times what a group usually takes: from then on it may hang
# Seconds at the same lines, after which a step may hang of which nobody knows what it usually
# takes.
STANDS = 60.0
SHOWN = 3  # hosts
SHORT = 10.0  # seconds within which nobody wonders
# What needs a look most comes first where not all members are shown.
_URGENT = {
    state: n for n, state in enumerate((S.BACKOFF, S.RUNNING, S.CANCELING, S.QUEUED, S.WAITING))
}


def explain_group(
    facts: ExplanationFacts, name: str, planned: PlannedGroup, shown: int | None
) -> Iterator[Explanation]:
    """The members of a planned group that are not done: at most ``shown`` of those that have begun,
    and the rest.
    """
    state = facts.state
    open_members = [
        member
        for member in (state.members(name) if len(state.census[name]) else ())
        if (member_state := state.record(member).state) is not S.WAITING
        and not member_state.terminal
    ]
    open_members.sort(key=lambda member: _URGENT[state.record(member).state])
    for member in open_members[:shown]:
        yield _begun(facts, member, planned)
    if shown is not None and len(open_members) > shown:
        more = len(open_members) - shown
        yield Explanation(
            subject=name, state="", what=f"and {more} more of its members that are not done"
        )
    whole = state.record(name)
    if (
        whole.state is S.SKIPPED
        and whole.reason is not None
        and whole.reason.code in ("CONDITION_FALSE", NOT_FAILED)
    ):
        ends = Event(what="it was skipped; this is final")
        yield Explanation(
            subject=name, state=whole.state, what=whole.reason.text, since=whole.since, ends=ends
        )
    # Members that a pause took back are among the waiting: why they wait now may differ from what
    # was noted then.
    waiting = Draft(state, facts.env).waiting_members(name)
    if waiting > 0:
        yield _waiting(facts, name, planned, waiting)


def _waiting(
    facts: ExplanationFacts, name: str, planned: PlannedGroup, members: int
) -> Explanation:
    many = f"{members} members: " if planned.spec.for_each is not None and members > 1 else ""
    since = facts.state.job.submitted_at
    if canceled := facts.canceled(planned):
        return _canceled(facts, canceled, name, S.WAITING, since, many)
    result, reason = judge(planned.spec.join, facts.state.needs[name])
    if result is JoinResult.WAIT:
        return _waiting_for_needs(facts, name, planned, many, reason.text)
    since = max(
        (facts.done[need] for need in planned.spec.needs if need in facts.done), default=since
    )
    return _waiting_for_room(facts, name, planned, many, since)


def _waiting_for_needs(
    facts: ExplanationFacts, name: str, planned: PlannedGroup, many: str, join: str
) -> Explanation:
    state = facts.state
    open_needs = [need for need in planned.spec.needs if not state.done(need)]
    needs = ", ".join(_need(state, need) for need in open_needs[:5])
    more = f" and {len(open_needs) - 5} more" if len(open_needs) > 5 else ""
    if planned.spec.when is not None:
        more += f"; then its condition decides: {quoted(planned.spec.when)}"
    return Explanation(
        subject=name,
        state=S.WAITING,
        what=f"{many}{join}; waits for {needs}{more}",
        short=f"waits for {needs}{more}",
        since=state.job.submitted_at,
        next=Event(what="what it needs is looked at again", at=facts.look_at),
        ends=Event(what=A_PERSON)
        if stands_still(state.job)
        else facts.ends("when its join can no longer be satisfied"),
        help=facts.help,
    )


def _waiting_for_room(
    facts: ExplanationFacts, name: str, planned: PlannedGroup, many: str, since: float
) -> Explanation:
    job, queue, helps = facts.state.job, planned.spec.queue_name, facts.help
    lane = planned.spec.lane
    ends = (
        Event(what=A_PERSON)
        if stands_still(job)
        else facts.ends("never by itself: it goes when it has room")
    )
    if stands_still(job):
        why = "pause was asked for" if job.intent is Intent.PAUSE else "the job is halted"
        text = f"it may go, but {why}"
        following = Event(what="it is queued when the job is resumed")
    elif not facts.room.for_(lane):
        text = f"it may go; {_no_room(facts, lane)}"
        following = Event(
            what="it is queued as soon as one of them ends or is claimed", at=facts.look_at
        )
        if facts.room.in_parallel and not facts.env.runners.get(queue):
            helps = (_worker(queue), *helps)
    else:
        text = "it may go, and is queued when the job is looked at next"
        following = Event(what="it is queued", at=facts.look_at)
    return Explanation(
        subject=name,
        state=S.WAITING,
        what=f"{many}{text}",
        since=since,
        next=following,
        ends=ends,
        help=helps,
    )


def _no_room(facts: ExplanationFacts, lane: str) -> str:
    if not facts.room.in_parallel:
        return f"max_parallel: {facts.state.plan.max_parallel} are running"
    if (pool := pool_of(lane)) in facts.fleet.pools:
        return f"{facts.env.window(lane)} of its groups wait for {facts.fleet.pools[pool]} already"
    return f"{facts.env.window(lane)} of its offers stand ready on queue {queue_of(lane)} already"


def _worker(queue: str) -> str:
    return f"celery -A unstuck.tasks worker -Q {queue}"


def _canceled(
    facts: ExplanationFacts,
    why: str,
    subject: str,
    state: GroupState,
    since: float,
    many: str = "",
    tried: str = "",
) -> Explanation:
    """A group that no runner holds, of a job that ends: at once, or as soon as it is resumed."""
    when, ends = (
        "when the job is looked at next",
        Event(what="when the job is looked at next", at=facts.look_at),
    )
    if stands_still(facts.state.job):
        when, ends = "when the job is resumed", Event(what=A_PERSON)
    return Explanation(
        subject=subject,
        state=state,
        what=f"{many}{why}; it is canceled {when}",
        since=since,
        tried=tried,
        next=Event(what=f"it is canceled, {when}", at=ends.at),
        ends=ends,
        help=facts.help,
    )


def _need(state: JobState, need: str) -> str:
    census = state.census[need]
    count = state.plan.member_count(need, state.collected)
    if state.plan.groups[need].spec.for_each is not None:
        ended = sum(n for s, n in census.items() if GroupState(s).terminal)
        return (
            f"{need} ({ended} of {count if count is not None else 'a number nobody knows yet'} "
            "done)"
        )
    return f"{need} ({state.record(need).state})"


def _begun(facts: ExplanationFacts, group_id: str, planned: PlannedGroup) -> Explanation:
    """A group that is QUEUED, RUNNING, CANCELING or in BACKOFF."""
    record = facts.state.record(group_id)
    if record.state in (S.RUNNING, S.CANCELING):
        return _running(facts, group_id, planned, record)
    if canceled := facts.canceled(planned):
        return _canceled(
            facts, canceled, group_id, record.state, record.since, tried=_tried_so_far(record)
        )
    if record.state is S.QUEUED:
        return _queued(facts, group_id, planned, record)
    return _backoff(facts, group_id, planned, record)


def _backoff(
    facts: ExplanationFacts, group_id: str, planned: PlannedGroup, record: GroupRecord
) -> Explanation:
    """A group in BACKOFF waits for a time; but while it is held, or has no room, it waits for no
    time.
    """
    job, attempt, lane = facts.state.job, f"attempt {record.epoch + 1}", planned.spec.lane
    code, what = (
        (record.reason.code, record.reason.text)
        if record.reason
        else ("", "it is to be tried again")
    )
    timed = False
    if stands_still(job):
        if record.last_error is not None and record.last_error.code == code:
            what = (
                record.last_error.text
            )  # without the time of the attempt, which was noted with the reason
        short = (
            f"{attempt} when the job is resumed: {code}: {what}"
            if code
            else f"{attempt} when the job is resumed"
        )
        what = f"{what}; it is tried again when the job is resumed"
        following, ends = Event(what=f"{attempt}, when the job is resumed"), Event(what=A_PERSON)
    else:
        short = f"{code}: {what}" if code else ""
        at = retry_at(record, planned.retry, facts.env)
        timed = at > facts.env.now or facts.room.for_(lane)
        following = Event(
            what=attempt if timed else f"{attempt}, if there is room", at=facts.ahead(at)
        )
        if not timed:
            short = f"its time has come; {_no_room(facts, lane)}: {short or what}"
            what = f"{what}; its time has come; {_no_room(facts, lane)}"
        own = (
            f"after {planned.retry.max} retries, or {planned.spec.worker_losses} workers lost "
            "in "
            "a row"
        )
        ends = facts.ends(own)
    return Explanation(
        subject=group_id,
        state=record.state,
        what=what,
        short=short,
        timed=timed,
        since=record.since,
        tried=_tried_so_far(record),
        next=following,
        ends=ends,
        help=(f"unstuck logs {job.id} {group_id}", *facts.help),
    )


def _queued(
    facts: ExplanationFacts, group_id: str, planned: PlannedGroup, record: GroupRecord
) -> Explanation:
    job, env, queue, helps = facts.state.job, facts.env, planned.spec.queue_name, facts.help
    if stands_still(job):
        ends = Event(what=A_PERSON)
        if job.halted is not None:
            what = "nobody may take it before a resume: the job is halted"
            following = Event(what="it may be taken again, when the job is resumed")
        else:
            what = f"{job.intent} was asked for"
            following = Event(what="it is taken back, if nobody has taken it", at=facts.look_at)
    else:
        what, helps, awaited = _why_nobody_takes(facts, planned)
        following = Event(
            what="the job is looked at again; each sweep wakes idle runners", at=facts.look_at
        )
        attempt = facts.state.attempts.get(group_id)
        if attempt is not None and attempt.avoid and attempt.avoid_until > env.now:
            others = listed(env.others(queue, attempt.avoid), SHOWN) or "other hosts"
            what = f"{what}; it was tried on host {attempt.avoid}, so first it is left to {others}"
            following = Event(what=f"host {attempt.avoid} may take it too", at=attempt.avoid_until)
        ends = facts.ends(f"never by itself: {awaited} at any time")
        if given_up_at := queue_timeout_at(job, record, planned.spec.queue_timeout, env):
            ends = facts.ends(
                f"FAILED by its queue_{timeout_of(planned.spec.queue_timeout)}", given_up_at
            )
    return Explanation(
        subject=group_id,
        state=record.state,
        what=what,
        since=record.since,
        tried=_tried_so_far(record),
        next=following,
        ends=ends,
        help=helps,
    )


def _why_nobody_takes(
    facts: ExplanationFacts, planned: PlannedGroup
) -> tuple[str, tuple[str, ...], str]:
    """Why no runner has taken a queued group, the commands that help, and what is awaited."""
    queue, pool, helps = planned.spec.queue_name, planned.spec.pool, facts.help
    awaited = "a worker may come"
    runners = facts.env.runners.get(queue, 0)
    if not runners:
        return f"queue {queue}: no worker listens on it", (_worker(queue),), awaited
    listen = "runners listen" if runners > 1 else "runner listens"
    what = f"queue {queue}: {runners} {listen}, and none has taken it yet"
    unlike = facts.fleet.unlike.get((queue, planned.spec.spark))
    if unlike and unlike.nobody:
        what = f"queue {queue}: {unlike.text}, and nobody else listens there"
        mixed = f"unstuck alter {facts.state.job.id} --set mixed=true"
        cure = _worker(queue) if unlike.no_spark else mixed
        return what, (cure, "unstuck fleet", *helps), awaited
    if unlike:
        what = f"{what}; {unlike.text}"
    if pool and pool in facts.fleet.pools:
        what = f"waits for {facts.fleet.pools[pool]}"
        awaited = "a slot may become free, or be added,"
        return what, ("unstuck pool list", *helps), awaited
    if queue in facts.fleet.unread:
        what = f"{what}; messages wait unread on {facts.fleet.unread[queue]}"
        return what, ("unstuck doctor", *helps), awaited
    if queue in facts.fleet.busy:
        return f"{what}; {facts.fleet.busy[queue]}", ("unstuck fleet", *helps), awaited
    return what, helps, awaited


def _running(
    facts: ExplanationFacts, group_id: str, planned: PlannedGroup, record: GroupRecord
) -> Explanation:
    state, env, attempt = facts.state, facts.env, facts.state.attempts.get(group_id)
    job = state.job
    lease = (
        min(lease_end(record, attempt, env), env.now + env.lease_ttl)
        if attempt is not None
        else 0.0
    )
    silent = max(0.0, env.now - (lease - env.lease_ttl)) if lease else 0.0
    what = (
        f"worker {record.worker} runs attempt {record.epoch}; last heard of "
        f"{format_duration(silent)} ago"
    )
    earlier = facts.fleet.durations.get(group_id, ())
    ran = env.now - attempt.claimed_at if attempt is not None else 0.0
    if earlier and ran > SHORT:
        before = "the run before" if len(earlier) == 1 else f"{len(earlier)} runs before"
        usual = f"and usually takes {format_duration(median(earlier))} ({before})"
        what += f"; it has run for {format_duration(ran)}, {usual}"
    stack = facts.fleet.stacks.get(group_id)
    if stack is not None:
        what += "; ".join(
            [f"; its step stands {stands_at(stack, env.now)}", *map(stage_told, stack.stages[:1])]
        )
    hangs = (
        ran > max(LONG * median(earlier), SHORT)
        if earlier
        else stack is not None and stack.stood > STANDS
    )
    helps = (
        (f"unstuck pause {job.id} --now",)
        if hangs and job.intent is Intent.RUN and not stands_still(job)
        else ()
    )
    ends = _running_ends(facts, planned, attempt)
    following = Event(
        what="the worker counts as lost if nothing was heard of it by then", at=facts.ahead(lease)
    )
    if job.halted is not None and stands_still(job):
        following = Event(what="its outcome counts when the job is resumed")
    elif facts.cut and (canceled := facts.canceled(planned)):
        what = f"{what}; {canceled}, and it can change nothing any more"
        following = Event(what="it is ended", at=facts.look_at)
        ends = Event(what="when the job is looked at next", at=facts.look_at)
    elif job.intent is Intent.PAUSE and job.pause_now:
        what = f"{what}; it is told to hand it back, since the job is paused"
        following = Event(what="it is handed back, or killed", at=following.at)
        ends = Event(what="it is tried again when the job is resumed", at=ends.at)
    elif record.state is S.CANCELING or job.intent is Intent.CANCEL:
        what += ", and was told to end" if record.state is S.CANCELING else ", and is told to end"
        deadline = (
            f"at the deadline, {format_duration(env.cancel_deadline)} after the cancel was "
            "asked for"
        )
        ends = Event(what=deadline, at=max(cancel_at(job, env), env.now))
    return Explanation(
        subject=group_id,
        state=record.state,
        what=what,
        since=record.since if record.state is S.CANCELING else record.started_at or record.since,
        tried=_tried_so_far(record),
        next=following,
        ends=ends,
        help=(f"unstuck logs {job.id} {group_id} -f", *helps, *facts.help),
        stack=stack,
    )


def _running_ends(
    facts: ExplanationFacts, planned: PlannedGroup, attempt: AttemptRecord | None
) -> Event:
    """The timeouts of a running attempt: of the step that the runner named last, of the group, and
    of the job.
    """
    timeouts = []
    number = 0 if attempt is None else int(attempt.shown_progress.get("step", 0))
    if 0 < number <= len(planned.spec.steps):
        step = planned.spec.steps[number - 1]
        if step.timeout is not None:
            timeouts.append(f"step {number} ({step.label}): {timeout_of(step.timeout)}")
    if planned.spec.timeout is not None:
        timeouts.append(f"timeout: {format_duration(planned.spec.timeout)} from its first step")
    given_up_at = job_timeout_at(facts.state.job, facts.state.plan.timeout, facts.env) or 0.0
    if given_up_at:
        timeouts.append(f"the job's {timeout_of(facts.state.plan.timeout)}")
    return Event(what="; ".join(timeouts) or "no timeout is set", at=given_up_at)


def _tried_so_far(record: GroupRecord) -> str:
    """The outcomes of earlier attempts; empty if there is nothing to tell."""
    parts = []
    if record.epoch > 1 and record.state is GroupState.QUEUED:
        parts.append(f"this is attempt {record.epoch}")
    if record.failures:
        parts.append(f"failed {record.failures} time{'s' if record.failures > 1 else ''}")
    if record.losses:
        parts.append(f"lost {record.losses} worker{'s in a row' if record.losses > 1 else ''}")
    if record.releases:
        parts.append(f"was handed back {record.releases} time{'s' if record.releases > 1 else ''}")
    if record.first_error is not None:
        parts.append(f"first error: {record.first_error.code}: {record.first_error.text}")
    if record.last_error is not None and record.last_error != record.first_error:
        parts.append(f"last error: {record.last_error.code}: {record.last_error.text}")
    return "; ".join(parts)
