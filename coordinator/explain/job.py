"""Explain: what a job, and each of its groups that is not done, waits for. Pure, by the rules that ``decide`` goes by.

One function decides and this one narrates: join verdicts, due times, room and budgets are asked of the same functions,
so that an explanation cannot disagree with the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from unstuck.coordinator.decide.attempts import held_until
from unstuck.coordinator.decide.deadlines import (
    PUBLISHING,
    cancel_at,
    job_timeout_at,
    publish_at,
    publish_hangs_at,
    queue_timeout_at,
    resend_at,
    retry_at,
)
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.joins import Verdict, judge
from unstuck.coordinator.explain.brief import job_brief, nobody_looks
from unstuck.coordinator.explain.explanation import (
    AT_WORK,
    Explanation,
    Idle,
    Seen,
    ahead,
    attempts_told,
    held,
    step_timeout,
    timeout_of,
    tried_so_far,
    ways_to_end,
)
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.coordinator.spec.condition import quoted
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration

S = GroupState
SHOWN = 20  # groups of one planned group that are explained one by one
A_PERSON = "a person decides"
LONG = 4.0  # times what a group took when it last succeeded: from then on its line says so
SHORT = 10.0  # seconds within which nobody wonders


def explain(
    state: JobState,
    env: Environment,
    due: float | None,
    members: int | None = SHOWN,
    took: Mapping[str, float] | None = None,
    idle: Idle = AT_WORK,
    lying: Mapping[str, str] | None = None,
    busy: Mapping[str, str] | None = None,
) -> list[Explanation]:
    """The job first, then every group that is not done or that its condition skipped, in the order of the spec.

    Args:
        due: when the job is decided again at the latest; None if it has ended.
        members: of each fork, at most so many are explained one by one; None: all.
        took: seconds that groups took when they last succeeded, in an earlier job; see `Queries.took`.
        idle: for how long no coordinator has looked at any job; see `Queries.idle`.
        lying: queues on which messages lie before idle runners, with the words for it; see `left_lying`.
        busy: queues whose runners are all at work, with the words for it; see `all_at_work`.
    """
    if state.damage and not state.job.terminal:
        return [_damaged(state, env, due)]
    job = _job(state, env, due)
    if state.job.terminal:
        return [job]
    seen = Seen(state, env, due, took or {}, lying or {}, busy or {})
    found: list[Explanation] = []
    for name, planned in state.plan.groups.items():
        found.extend(_planned(seen, name, planned, members))
    alone = nobody_looks(env, due, idle)
    brief = job_brief(state, env, alone, found)
    if alone:
        helps = ("celery -A unstuck.coordinator worker -P threads", *job.help)
        told = replace(job, what=f"{job.what}; {alone}", short=brief, help=helps)
        return [_without_a_coordinator(each) for each in (told, *found)]
    timed = state.job.phase == PUBLISHING and state.job.publish_tries > 0 and state.job.halted is None
    timed &= not state.job.publish_heard
    return [replace(job, short=brief, timed=timed), *found]


def _damaged(state: JobState, env: Environment, due: float | None) -> Explanation:
    job = state.job
    next_what = "a coordinator looks at it again"
    helps = (f"unstuck force-stop {job.id}",) if job.intent is not Intent.FORCE_STOP else ()
    return Explanation(
        job.id, job.status, state.damage, job.paused_at, "", ahead(0.0, env, due), next_what, A_PERSON, help=helps
    )


def _without_a_coordinator(explained: Explanation) -> Explanation:
    """Nothing of it comes at its time while nobody looks."""
    if not explained.next_what:
        return explained
    next_what = f"as soon as a coordinator looks: {explained.next_what}"
    return replace(explained, next_at=0.0, next_what=next_what, gives_up_at=0.0, timed=False)


# ---- the job -----------------------------------------------------------------------------------------------------


def _job(state: JobState, env: Environment, due: float | None) -> Explanation:
    job = state.job
    if job.terminal:
        text = job.reason.text if job.reason else f"it is {job.status}"
        told = f"; {job.intent_by} asked for {job.intent}{_because(job)}" if job.intent is not Intent.RUN else ""
        helps: tuple[str, ...] = ()
        if job.status is not Status.FINISHED:
            helps = (f"unstuck retry {job.id}", f"unstuck events {job.id}", f"unstuck logs {job.id}")
        return Explanation(
            job.id, job.status, text + told, job.ended_at, gives_up="it has ended; this is final", help=helps
        )
    next_at, next_what = ahead(0.0, env, due), "everything is looked at again, whoever may have been lost"
    resume = (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")
    if job.halted is not None and held(job):
        what, since = job.halted.text, job.paused_at or job.intent_at
        next_what = "it is looked at, and nothing is decided before a resume"
        return Explanation(job.id, job.status, what, since, "", next_at, next_what, A_PERSON, help=resume)
    if job.phase == PUBLISHING:
        return _publishing(state, env, due)
    left = state.size - sum(n for s, n in state.tally.items() if GroupState(s).terminal)
    if job.intent is Intent.PAUSE:
        what = f"{job.intent_by} paused it{_because(job)}"
        if job.status is Status.PAUSING:
            told = "are being interrupted" if job.pause_now else "are still running and may end"
            what += f"; {attempts_told(len(state.active), told)}"
        ends = A_PERSON
        if state.plan.timeout is not None:
            ends += f"; the time that it stands PAUSED does not count towards its {timeout_of(state.plan.timeout)}"
        next_what = "everything is looked at again, and nothing is started before a resume"
        return Explanation(job.id, job.status, what, job.intent_at, "", next_at, next_what, ends, help=resume)
    given_up_at = job_timeout_at(job, state.plan.timeout, env) or 0.0
    if job.intent is not Intent.RUN:
        open_attempts = attempts_told(len(state.active), "have not ended yet")
        what = f"{job.intent_by} asked for {job.intent}{_because(job)}; {open_attempts}"
        if job.halted is not None:
            what += f"; before that: {job.halted.text}"
        if job.intent is Intent.STOP:
            gives_up = "when they have ended; they are not interrupted"
            if given_up_at:
                gives_up += f" before the job's {timeout_of(state.plan.timeout)}"
        elif job.intent is Intent.FORCE_STOP:
            gives_up, given_up_at = "when it is looked at next", next_at
        else:
            gives_up = f"at the deadline, {format_duration(env.cancel_deadline)} after it was asked"
            given_up_at = max(cancel_at(job, env), env.now)
        helps = ways_to_end(job)
        return Explanation(
            job.id, job.status, what, job.intent_at, "", next_at, next_what, gives_up, given_up_at, helps
        )
    what = f"{left} of {state.size} groups {'is' if left == 1 else 'are'} not done"
    if state.recovering:
        what += f"; {len(state.recovering)} failed or were lost and are tried again"
    since = job.started_at or job.submitted_at
    gives_up = "when its groups do"
    if job.timed_out is not None:
        what, gives_up, given_up_at = f"{what}; {job.timed_out.text}", "when it is looked at next", next_at
    elif given_up_at:
        gives_up += f"; or FAILED by its {timeout_of(state.plan.timeout)}"
    elif state.plan.timeout is not None:
        gives_up += f"; or FAILED by its {timeout_of(state.plan.timeout)} from its first claimed attempt"
    helps = ways_to_end(job)
    return Explanation(job.id, job.status, what, since, "", next_at, next_what, gives_up, given_up_at, helps)


def _publishing(state: JobState, env: Environment, due: float | None) -> Explanation:
    job, at = state.job, publish_at(state.job, env)
    what, next_what = "all groups are done; the package could not be published yet", "publishing is tried again"
    if job.aborting:
        what = f"{job.intent_by} asked for {job.intent} while it published; the warehouse log is asked which was first"
    elif job.publish_heard or not job.publish_tries:
        what = "all groups are done; the package is being published"
    if job.publish_heard:
        what += f", last heard of {format_duration(max(0.0, env.now - job.publish_heard))} ago"
        next_what = "if the coordinator that publishes has died, another does"
        if at >= publish_hangs_at(job):
            next_what = "if nothing is heard of it by then, it counts as hanging, and is tried again beside it"
    times = "once" if job.publish_tries == 1 else f"{job.publish_tries} times"
    tried = f"tried {times}: {job.reason.text}" if job.publish_tries and job.reason else ""
    return Explanation(
        job.id,
        job.status,
        what,
        max((record.since for record in state.groups.values()), default=0.0),  # when the last group was done
        tried,
        ahead(at, env, due),
        next_what,
        "never by itself: what is done is not thrown away because the warehouse is away",
        help=("unstuck doctor", *(() if job.aborting else ways_to_end(job))),
    )


def _because(job: JobRecord) -> str:
    return f" ({job.intent_why})" if job.intent_why else ""


# ---- groups ------------------------------------------------------------------------------------------------------


# What needs a look most comes first where not all members are shown.
_URGENT = {state: n for n, state in enumerate((S.BACKOFF, S.RUNNING, S.CANCELING, S.QUEUED, S.WAITING))}


def _planned(seen: Seen, name: str, planned: PlannedGroup, shown: int | None) -> Iterator[Explanation]:
    state = seen.state
    open_members = [
        member
        for member in (state.members(name) if len(state.census[name]) else ())
        if (standing := state.record(member).state) is not S.WAITING and not standing.terminal
    ]
    open_members.sort(key=lambda member: _URGENT[state.record(member).state])
    for member in open_members[:shown]:
        yield _group(seen, member, planned)
    if shown is not None and len(open_members) > shown:
        yield Explanation(name, "", f"and {len(open_members) - shown} more of its members that are not done")
    # Those that a pause took back among them: why they wait is asked of what holds now, not of what was noted then.
    waiting = Draft(state, seen.env).waiting_members(name)
    whole = state.record(name)
    if whole.state is S.SKIPPED and whole.reason is not None and whole.reason.code == "CONDITION_FALSE":
        yield Explanation(name, whole.state, whole.reason.text, whole.since, gives_up="it was skipped; this is final")
    if waiting > 0:
        yield _waiting(seen, name, planned, waiting)


def _waiting(seen: Seen, name: str, planned: PlannedGroup, members: int) -> Explanation:
    state, job = seen.state, seen.state.job
    found = judge(planned.spec.join, state.needs[name])
    many = f"{members} members: " if planned.spec.for_each is not None and members > 1 else ""
    gives_up, given_up_at = (A_PERSON, 0.0) if held(job) else seen.gives_up("never by itself: it goes when it has room")
    helps, short, since = seen.help, "", job.submitted_at
    if seen.ends:
        return _canceled(seen, name, S.WAITING, since, many)
    if found.verdict is Verdict.WAIT:
        open_needs = [need for need in planned.spec.needs if not state.done(need)]
        listed = ", ".join(_need(state, need) for need in open_needs[:5])
        more = f" and {len(open_needs) - 5} more" if len(open_needs) > 5 else ""
        if planned.spec.when is not None:
            more += f"; then its condition decides: {quoted(planned.spec.when)}"
        text, short = f"{found.reason.text}; waits for {listed}{more}", f"waits for {listed}{more}"
        next_what = "what it needs is looked at again"
        if not held(job):
            gives_up, given_up_at = seen.gives_up("when these can no longer satisfy it")
    else:
        since = max((seen.done[need] for need in planned.spec.needs if need in seen.done), default=since)
        queue, next_what = planned.spec.queue_name, "it is queued as soon as one of them ends or is claimed"
        if held(job):
            text = f"it may go, but {'pause was asked for' if job.intent is Intent.PAUSE else 'the job is halted'}"
            next_what = "it is queued when the job is resumed"
        elif not seen.room.for_(queue):
            text = f"it may go; {_no_room(seen, queue)}"
            if seen.room.in_parallel and not seen.env.slots.get(queue):
                helps = (_worker(queue), *helps)
        else:
            text, next_what = "it may go, and is queued when the job is looked at next", "it is queued"
    next_at = 0.0 if held(job) and found.verdict is not Verdict.WAIT else seen.next_at
    what = f"{many}{text}"
    return Explanation(name, S.WAITING, what, since, "", next_at, next_what, gives_up, given_up_at, helps, short=short)


def _no_room(seen: Seen, queue: str) -> str:
    if not seen.room.in_parallel:
        return f"max_parallel: {seen.state.plan.max_parallel} are running"
    return f"{seen.env.window(queue)} hints on queue {queue} are unclaimed"


def _worker(queue: str) -> str:
    return f"celery -A unstuck.tasks worker -Q {queue}"


def _canceled(
    seen: Seen, subject: str, state: GroupState, since: float, many: str = "", tried: str = ""
) -> Explanation:
    """A group that nobody holds, of a job that ends: at once, or as soon as it is resumed."""
    when, at, ends = "when the job is looked at next", seen.next_at, "when the job is looked at next"
    if held(seen.state.job):
        when, at, ends = "when the job is resumed", 0.0, A_PERSON
    what = f"{many}{seen.ends}; it is canceled {when}"
    return Explanation(subject, state, what, since, tried, at, f"it is canceled, {when}", ends, at, seen.help)


def _need(state: JobState, need: str) -> str:
    census = state.census[need]
    count = state.plan.member_count(need, state.collected)
    if state.plan.groups[need].spec.for_each is not None:
        ended = sum(n for s, n in census.items() if GroupState(s).terminal)
        return f"{need} ({ended} of {count if count is not None else 'a number nobody knows yet'} done)"
    return f"{need} ({state.record(need).state})"


def _group(seen: Seen, group_id: str, planned: PlannedGroup) -> Explanation:
    """One that is QUEUED, RUNNING, CANCELING or in BACKOFF."""
    record = seen.state.record(group_id)
    if record.state in (S.RUNNING, S.CANCELING):
        return _running(seen, group_id, planned, record)
    if seen.ends:
        return _canceled(seen, group_id, record.state, record.since, tried=tried_so_far(record))
    if record.state is S.QUEUED:
        return _queued(seen, group_id, planned, record)
    return _backoff(seen, group_id, planned, record)


def _backoff(seen: Seen, group_id: str, planned: PlannedGroup, record: GroupRecord) -> Explanation:
    """It waits for a time, and its line says which; but while it is held, or has no room, for no time."""
    job, attempt, queue = seen.state.job, f"attempt {record.epoch + 1}", planned.spec.queue_name
    code, what = (record.reason.code, record.reason.text) if record.reason else ("", "it is to be tried again")
    tried, helps = tried_so_far(record), (f"unstuck logs {job.id} {group_id}", *seen.help)
    if held(job):
        if record.last_error is not None and record.last_error.code == code:
            what = record.last_error.text  # without the time of the attempt, which was noted with the reason
        short = f"{attempt} when the job is resumed: {code}: {what}" if code else f"{attempt} when the job is resumed"
        text = f"{what}; it is tried again when the job is resumed"
        next_what = f"{attempt}, when the job is resumed"
        return Explanation(
            group_id, record.state, text, record.since, tried, 0.0, next_what, A_PERSON, 0.0, helps, short=short
        )
    short = f"{code}: {what}" if code else ""
    at = retry_at(record, planned.retry, seen.env)
    timed = at > seen.env.now or seen.room.for_(queue)
    next_what = attempt
    if not timed:
        short = f"its time has come; {_no_room(seen, queue)}: {short or what}"
        what, next_what = f"{what}; its time has come; {_no_room(seen, queue)}", f"{attempt}, if there is room"
    own = f"after {planned.retry.max} retries, or {planned.spec.worker_losses} workers lost in a row"
    gives_up, given_up_at = seen.gives_up(own)
    at = ahead(at, seen.env, seen.due)
    return Explanation(
        group_id,
        record.state,
        what,
        record.since,
        tried,
        at,
        next_what,
        gives_up,
        given_up_at,
        helps,
        short=short,
        timed=timed,
    )


def _queued(seen: Seen, group_id: str, planned: PlannedGroup, record: GroupRecord) -> Explanation:
    job, env, queue = seen.state.job, seen.env, planned.spec.queue_name
    sent = f"its hint was sent {record.hints} times" if record.hints > 1 else ""
    tried = "; ".join(filter(None, (tried_so_far(record), sent)))
    if held(job):
        what, next_at = "nobody may take it before a resume: the job is halted", 0.0
        next_what = "it may be taken again, when the job is resumed"
        if job.halted is None:
            what, next_at = f"{job.intent} was asked for", seen.next_at
            next_what = "its hint is taken back, if nobody has taken it"
        return Explanation(
            group_id, record.state, what, record.since, tried, next_at, next_what, A_PERSON, 0.0, seen.help
        )
    slots, helps = env.slots.get(queue, 0), seen.help
    if slots:
        what = (
            f"queue {queue}: {slots} {'runners listen' if slots > 1 else 'runner listens'}, and none has taken it yet"
        )
        if queue in seen.lying:
            what, helps = f"{what}; messages lie on {seen.lying[queue]}", ("unstuck doctor", *helps)
        elif queue in seen.busy:
            what, helps = f"{what}; {seen.busy[queue]}", ("unstuck fleet", *helps)
    else:
        what, helps = f"queue {queue}: no worker listens on it", (_worker(queue),)
    at = ahead(resend_at(record, queue, env), env, seen.due)
    given_up_at = queue_timeout_at(job, record, planned.spec.queue_timeout, env) or 0.0
    own = "never by itself: a worker may come at any time"
    if given_up_at:
        own = f"FAILED by its queue_{timeout_of(planned.spec.queue_timeout)}"
    gives_up, given_up_at = seen.gives_up(own, given_up_at)
    next_what = "the hint is sent again if it may be lost"
    return Explanation(group_id, record.state, what, record.since, tried, at, next_what, gives_up, given_up_at, helps)


def _running(seen: Seen, group_id: str, planned: PlannedGroup, record: GroupRecord) -> Explanation:
    state, env, attempt = seen.state, seen.env, seen.state.attempts.get(group_id)
    job = state.job
    lease = min(held_until(record, attempt, env), env.now + env.lease_ttl) if attempt is not None else 0.0
    silent = max(0.0, env.now - (lease - env.lease_ttl)) if lease else 0.0
    what = f"worker {record.worker} runs attempt {record.epoch}; last heard of {format_duration(silent)} ago"
    took, ran = seen.took.get(group_id, 0.0), env.now - attempt.claimed_at if attempt is not None else 0.0
    if took and ran > max(LONG * took, SHORT):
        what += f"; it has run for {format_duration(ran)}, and took {format_duration(took)} when it last succeeded"
    given_up_at = job_timeout_at(job, state.plan.timeout, env) or 0.0
    timeouts = step_timeout(planned, attempt)
    if planned.spec.timeout is not None:
        timeouts.append(f"timeout: {format_duration(planned.spec.timeout)} from its first step")
    if given_up_at:
        timeouts.append(f"the job's {timeout_of(state.plan.timeout)}")
    gives_up = "; ".join(timeouts) or "no timeout is set"
    next_at, next_what = ahead(lease, env, seen.due), "it is taken for lost if it was not heard of by then"
    if job.halted is not None and held(job):
        next_at, next_what = 0.0, "how it ends is taken in when the job is resumed"
    elif seen.cut:
        what, next_what = f"{what}; {seen.ends}, and it may change nothing any more", "it is ended"
        gives_up, next_at, given_up_at = "when the job is looked at next", seen.next_at, seen.next_at
    elif job.intent is Intent.PAUSE and job.pause_now:
        what, next_what = f"{what}; it is told to hand it back, since the job is paused", "it is handed back, or killed"
        gives_up = "it is tried again when the job is resumed"
    elif record.state is S.CANCELING or job.intent is Intent.CANCEL:
        what += ", and was told to end" if record.state is S.CANCELING else ", and is told to end"
        gives_up = f"at the deadline, {format_duration(env.cancel_deadline)} after the cancel was asked for"
        given_up_at = max(cancel_at(job, env), env.now)
    helps = (f"unstuck logs {job.id} {group_id} -f", *seen.help)
    return Explanation(
        group_id,
        record.state,
        what,
        record.since,
        tried_so_far(record),
        next_at,
        next_what,
        gives_up,
        given_up_at,
        helps,
    )
