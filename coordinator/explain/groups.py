"""Explain why each group of a job that is not done waits (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intent import cancel_at
from unstuck.coordinator.decide.joins import NOT_FAILED, JoinResult, judge
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at, queue_timeout_at, retry_at
from unstuck.coordinator.decide.timers.leases import lease_end
from unstuck.coordinator.explain.explanation import Event, Explanation
from unstuck.coordinator.explain.explanation_facts import (
    A_PERSON,
    ExplanationFacts,
    stands_still,
    timeout_of,
)
from unstuck.coordinator.explain.stack_words import stage_text, stands_at
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.spec.condition import quoted
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.coordinator.spec.problems import counted, listed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import pool_of, queue_of
from unstuck.tasks.protocol.step_stack import StepStack

S = GroupState
HANG_FACTOR = 4.0  # a group that runs for this many times its usual duration may hang
HANG_AT_LINE_S = 60.0  # a step without an earlier run may hang after this time at the same lines
MAX_HOSTS_SHOWN = 3
MIN_LONG_RUN_S = 10.0  # a shorter run is never remarkable
# The order in which members that have begun are shown.
_URGENT = {state: rank for rank, state in enumerate((S.BACKOFF, S.RUNNING, S.CANCELING, S.QUEUED))}
_RETRY = Reason("", "it is to be tried again")  # of a group in BACKOFF without a stored reason
_SKIPPED_ITSELF = ("CONDITION_FALSE", NOT_FAILED)  # reasons that concern the group itself


def explain_group(
    facts: ExplanationFacts, name: str, planned: PlannedGroup, shown: int | None
) -> Iterator[Explanation]:
    """Explain the members of a planned group that are not done.

    Args:
        shown: explain at most this many of the started members; None for all.
    """
    state = facts.state
    open_members = _open_members(state, name)
    for member in open_members[:shown]:
        yield _begun(facts, member, planned)
    if shown is not None and len(open_members) > shown:
        more = len(open_members) - shown
        yield Explanation(
            subject=name, state="", what=f"and {more} more of its members that are not done"
        )
    whole = state.record(name)
    if whole.state is S.SKIPPED and whole.reason and whole.reason.code in _SKIPPED_ITSELF:
        ends = Event(what="it was skipped; this is final")
        yield Explanation(
            subject=name, state=whole.state, what=whole.reason.text, since=whole.since, ends=ends
        )
    # A pause returns members to WAITING. They may now wait for another reason than the stored one.
    waiting = Draft(state, facts.env).waiting_members(name)
    if waiting > 0:
        yield _waiting(facts, name, planned, waiting)


def _open_members(state: JobState, name: str) -> list[str]:
    """Return the members that have begun and are not done, the most urgent first."""
    if not state.census[name]:
        return []
    urgencies = {member: _URGENT.get(state.record(member).state) for member in state.members(name)}
    ranked = {member: rank for member, rank in urgencies.items() if rank is not None}
    return sorted(ranked, key=ranked.__getitem__)


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
    ends = facts.ends("never by itself: it goes when it has room")
    if stands_still(job):
        ends = Event(what=A_PERSON)
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
    """Explain a group without a runner whose job ends now, or ends when it is resumed."""
    when = "when the job is looked at next"
    ends = Event(what=when, at=facts.look_at)
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
    """Explain a group that is QUEUED, RUNNING, CANCELING or in BACKOFF."""
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
    """Explain a group in BACKOFF. It waits for a time unless it is held or has no room."""
    job, reason = facts.state.job, record.reason or _RETRY
    if stands_still(job):
        timing = _held_backoff(record, reason)
    else:
        timing = _timed_backoff(facts, planned, record, reason)
    return replace(
        timing,
        subject=group_id,
        state=record.state,
        since=record.since,
        tried=_tried_so_far(record),
        help=(f"unstuck logs {job.id} {group_id}", *facts.help),
    )


def _held_backoff(record: GroupRecord, reason: Reason) -> Explanation:
    """Explain a BACKOFF of a job that is paused or halted. The caller adds the subject."""
    attempt, text, error = f"attempt {record.epoch + 1}", reason.text, record.last_error
    if error is not None and error.code == reason.code:
        text = error.text  # the text of the reason also has the time of the attempt
    error_text = f": {reason.code}: {text}" if reason.code else ""
    return Explanation(
        subject="",
        state="",
        what=f"{text}; it is tried again when the job is resumed",
        short=f"{attempt} when the job is resumed{error_text}",
        next=Event(what=f"{attempt}, when the job is resumed"),
        ends=Event(what=A_PERSON),
    )


def _timed_backoff(
    facts: ExplanationFacts, planned: PlannedGroup, record: GroupRecord, reason: Reason
) -> Explanation:
    """Explain a BACKOFF that waits for its time, or for room. The caller adds the subject."""
    attempt, lane = f"attempt {record.epoch + 1}", planned.spec.lane
    what, short = reason.text, f"{reason.code}: {reason.text}" if reason.code else ""
    at = retry_at(record, planned.retry, facts.env)
    timed = at > facts.env.now or facts.room.for_(lane)
    if not timed:
        attempt = f"{attempt}, if there is room"
        no_room = f"its time has come; {_no_room(facts, lane)}"
        what, short = f"{what}; {no_room}", f"{no_room}: {short or what}"
    limit = f"after {planned.retry.max} retries, or {planned.spec.worker_losses} workers lost"
    return Explanation(
        subject="",
        state="",
        what=what,
        short=short,
        timed=timed,
        next=Event(what=attempt, at=facts.ahead(at)),
        ends=facts.ends(f"{limit} in a row"),
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
            others = listed(env.others(queue, attempt.avoid), MAX_HOSTS_SHOWN) or "other hosts"
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
    """Explain why no runner has taken a queued group.

    Returns the reason, the commands that help, and the event that the group waits for.
    """
    queue, fleet, helps = planned.spec.queue_name, facts.fleet, facts.help
    awaited = "a worker may come"
    runners = facts.env.runners.get(queue, 0)
    if not runners:
        return f"queue {queue}: no worker listens on it", (_worker(queue),), awaited
    listen = counted(runners, "runner listens", "runners listen")
    what = f"queue {queue}: {listen}, and none has taken it yet"
    unlike = fleet.unlike.get((queue, planned.spec.spark))
    if unlike is not None:
        if unlike.nobody:
            what = f"queue {queue}: {unlike.text}, and nobody else listens there"
            mixed = f"unstuck alter {facts.state.job.id} --set mixed=true"
            cure = _worker(queue) if unlike.no_spark else mixed
            return what, (cure, "unstuck fleet", *helps), awaited
        what = f"{what}; {unlike.text}"
    if (full := fleet.pools.get(planned.spec.pool or "")) is not None:
        awaited = "a slot may become free, or be added,"
        return f"waits for {full}", ("unstuck pool list", *helps), awaited
    if (unread := fleet.unread.get(queue)) is not None:
        what = f"{what}; messages wait unread on {unread}"
        return what, ("unstuck doctor", *helps), awaited
    if (busy := fleet.busy.get(queue)) is not None:
        return f"{what}; {busy}", ("unstuck fleet", *helps), awaited
    return what, helps, awaited


def _running(
    facts: ExplanationFacts, group_id: str, planned: PlannedGroup, record: GroupRecord
) -> Explanation:
    job, env, attempt = facts.state.job, facts.env, facts.state.attempts.get(group_id)
    lease_at = ran = silent = 0.0
    if attempt is not None:
        lease_at = min(lease_end(record, attempt, env), env.now + env.lease_ttl)
        silent = max(0.0, env.now - lease_at + env.lease_ttl)
        ran = env.now - attempt.claimed_at
    earlier, stack = facts.fleet.durations.get(group_id, ()), facts.fleet.stacks.get(group_id)
    works = (
        f"worker {record.worker} runs attempt {record.epoch}; "
        f"last heard of {format_duration(silent)} ago"
    )
    note, following, ends = _fate(facts, planned, record, lease_at, attempt)
    helps = [f"unstuck logs {job.id} {group_id} -f", *facts.help]
    if _hangs(ran, earlier, stack) and job.intent is Intent.RUN and job.halted is None:
        helps.insert(1, f"unstuck pause {job.id} --now")
    begun = record.since if record.state is S.CANCELING else record.started_at
    return Explanation(
        subject=group_id,
        state=record.state,
        what=works + _usual_duration(ran, earlier) + _place(stack, env.now) + note,
        since=begun or record.since,
        tried=_tried_so_far(record),
        next=following,
        ends=ends,
        help=tuple(helps),
        stack=stack,
    )


def _usual_duration(ran: float, earlier: Sequence[float]) -> str:
    """Compare the duration of a running group with that of its earlier runs."""
    if not earlier or ran <= MIN_LONG_RUN_S:
        return ""
    before = "the run before" if len(earlier) == 1 else f"{len(earlier)} runs before"
    usual = format_duration(median(earlier))
    return f"; it has run for {format_duration(ran)}, and usually takes {usual} ({before})"


def _place(stack: StepStack | None, now: float) -> str:
    if stack is None:
        return ""
    return "; ".join(
        [f"; its step stands {stands_at(stack, now)}", *map(stage_text, stack.stages[:1])]
    )


def _hangs(ran: float, earlier: Sequence[float], stack: StepStack | None) -> bool:
    """Return whether a running group takes remarkably long."""
    if earlier:
        return ran > max(HANG_FACTOR * median(earlier), MIN_LONG_RUN_S)
    return stack is not None and stack.stood > HANG_AT_LINE_S


def _fate(
    facts: ExplanationFacts,
    planned: PlannedGroup,
    record: GroupRecord,
    lease_at: float,
    attempt: AttemptRecord | None,
) -> tuple[str, Event, Event]:
    """Return a remark on a running attempt, its next event, and the event that ends it."""
    job, env = facts.state.job, facts.env
    ends = _running_ends(facts, planned, attempt)
    lost = "the worker counts as lost if nothing was heard of it by then"
    following = Event(what=lost, at=facts.ahead(lease_at))
    if job.halted is not None and stands_still(job):
        return "", Event(what="its outcome counts when the job is resumed"), ends
    if facts.cut and (canceled := facts.canceled(planned)):
        note = f"; {canceled}, and it can change nothing any more"
        looked_at = Event(what="when the job is looked at next", at=facts.look_at)
        return note, Event(what="it is ended", at=facts.look_at), looked_at
    if job.intent is Intent.PAUSE and job.pause_now:
        note = "; it is told to hand it back, since the job is paused"
        resumed = Event(what="it is tried again when the job is resumed", at=ends.at)
        return note, Event(what="it is handed back, or killed", at=following.at), resumed
    if record.state is S.CANCELING or job.intent is Intent.CANCEL:
        note = ", and was told to end" if record.state is S.CANCELING else ", and is told to end"
        return note, following, _cancel_deadline(job, env)
    return "", following, ends


def _cancel_deadline(job: JobRecord, env: Environment) -> Event:
    after = format_duration(env.cancel_deadline)
    deadline = f"at the deadline, {after} after the cancel was asked for"
    return Event(what=deadline, at=max(cancel_at(job, env), env.now))


def _running_ends(
    facts: ExplanationFacts, planned: PlannedGroup, attempt: AttemptRecord | None
) -> Event:
    """Return the timeouts of a running attempt: its current step's, the group's, and the job's."""
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
    """Describe the outcomes of earlier attempts; empty without one."""
    first, last = record.first_error, record.last_error
    parts = {
        f"this is attempt {record.epoch}": record.epoch > 1 and record.state is S.QUEUED,
        f"failed {counted(record.failures, 'time')}": record.failures,
        f"lost {counted(record.losses, 'worker', 'workers in a row')}": record.losses,
        f"was handed back {counted(record.releases, 'time')}": record.releases,
    }
    texts = [text for text, applies in parts.items() if applies]
    if first is not None:
        texts.append(f"first error: {first.code}: {first.text}")
    if last is not None and last != first:
        texts.append(f"last error: {last.code}: {last.text}")
    return "; ".join(texts)
