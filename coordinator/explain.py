"""Explain: what a job, and each of its groups that is not done, waits for. Pure, by the rules that ``decide`` goes by.

One function decides and this one narrates: join verdicts, due times, room and budgets are asked of the same functions,
so that an explanation cannot disagree with the decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from coordinator.attempts import held_until
from coordinator.brief import job_brief
from coordinator.condition import quoted
from coordinator.decision import World
from coordinator.draft import Draft
from coordinator.due import PUBLISHING, job_timeout_at, overdue_at, publish_at, queue_timeout_at, retry_at
from coordinator.job import Attempt, GroupRecord, JobRecord
from coordinator.join import Verdict, judge
from coordinator.plan import PlannedGroup
from coordinator.queueing import Room
from coordinator.state import JobState
from coordinator.status import GroupState, Intent, Status
from tasks.duration import format_duration

S = GroupState
SHOWN = 20  # groups of one planned group that are explained one by one


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is where it is. Times are seconds by the clock of Redis; 0 where there is none.

    Attributes:
        subject: the group, or the job's id.
        state: its state or status.
        what: what it waits for, or how it came to end so, in a sentence.
        short: the same in a few words, where ``what`` is longer than that.
        timed: it waits for a time, ``next_at``, more than for anything else.
        since: when it came there.
        tried: what has been tried so far; empty if nothing had to be.
        next_at: when it is looked at next, and ``next_what`` what happens then.
        gives_up: when it stops waiting, in words; ``gives_up_at`` is the time of what is named last, if that is known.
        help: commands that would help.
    """

    subject: str
    state: str
    what: str
    short: str = field(default="", kw_only=True)
    timed: bool = field(default=False, kw_only=True)
    since: float = 0.0
    tried: str = ""
    next_at: float = 0.0
    next_what: str = ""
    gives_up: str = ""
    gives_up_at: float = 0.0
    help: tuple[str, ...] = ()

    def line(self, at: float) -> str:
        """What it waits for in one line, as it reads at the time ``at``: ``attempt 3 in 12s: STEP_FAILED: …``."""
        text = " ".join((self.short or self.what).split())
        if not self.timed:
            return text
        wait = self.next_at - at
        return f"{self.next_what} {f'in {format_duration(wait)}' if wait > 0 else 'now'}: {text}"


def explain(state: JobState, world: World, due: float | None, members: int | None = SHOWN) -> list[Explanation]:
    """The job first, then every group that is not done or that its condition skipped, in the order of the spec.

    Args:
        due: when the job is decided again at the latest; None if it has ended.
        members: of each fork, at most so many are explained one by one; None: all.
    """
    job = _job(state, world, due)
    if state.job.terminal:
        return [job]
    room = Room(Draft(state, world))
    found: list[Explanation] = []
    for name, planned in state.plan.groups.items():
        found.extend(_planned(state, world, name, planned, room, members))
    timed = state.job.phase == PUBLISHING and state.job.publish_tries > 0
    return [replace(job, short=job_brief(state, world, due, found), timed=timed), *found]


# ---- the job -----------------------------------------------------------------------------------------------------


def _job(state: JobState, world: World, due: float | None) -> Explanation:
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
    next_what = "everything is looked at again, whoever may have been lost"
    if job.halted is not None:
        helps = (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")
        return Explanation(
            job.id, job.status, job.halted.text, 0.0, "", due or 0.0, next_what, "a person decides", help=helps
        )
    if job.phase == PUBLISHING:
        return _publishing(state, world)
    left = state.size - sum(n for s, n in state.tally.items() if GroupState(s).terminal)
    if job.intent is Intent.PAUSE:
        what = f"{job.intent_by} paused it{_because(job)}"
        if job.status is Status.PAUSING:
            what += f"; {len(state.active)} attempts are still running and may end"
        helps = (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")
        ends = "a person decides"
        if state.plan.timeout is not None:
            ends += f"; the time that it stands PAUSED does not count towards its {_timeout(state.plan.timeout)}"
        return Explanation(job.id, job.status, what, job.intent_at, "", 0.0, "nothing", ends, help=helps)
    given_up_at = job_timeout_at(job, state.plan.timeout, world) or 0.0
    if job.intent is not Intent.RUN:
        what = f"{job.intent_by} asked for {job.intent}{_because(job)}; {len(state.active)} attempts have not ended yet"
        if job.intent is Intent.STOP:
            gives_up = "when they have ended; they are not interrupted"
            if given_up_at:
                gives_up += f" before the job's {_timeout(state.plan.timeout)}"
        else:
            gives_up = f"at the deadline, {format_duration(world.cancel_deadline)} after it was asked"
        force = (f"unstuck force-stop {job.id}",)
        return Explanation(
            job.id, job.status, what, job.intent_at, "", due or 0.0, next_what, gives_up, given_up_at, force
        )
    what = f"{left} of {state.size} groups are not done"
    if state.recovering:
        what += f"; {len(state.recovering)} failed or were lost and are tried again"
    if due is not None and due < world.now - 10:
        what += f"; it was due {format_duration(world.now - due)} ago and nobody looks: is a coordinator running?"
    since = job.started_at or job.submitted_at
    gives_up = "when its groups do"
    if job.timed_out is not None:
        what, gives_up = f"{what}; {job.timed_out.text}", "at once"
    elif given_up_at:
        gives_up += f"; or FAILED by its {_timeout(state.plan.timeout)}"
    elif state.plan.timeout is not None:
        gives_up += f"; or FAILED by its {_timeout(state.plan.timeout)} from its first claimed attempt"
    return Explanation(job.id, job.status, what, since, "", due or 0.0, next_what, gives_up, given_up_at)


def _timeout(seconds: float | None) -> str:
    return "" if seconds is None else f"timeout of {format_duration(seconds)}"


def _publishing(state: JobState, world: World) -> Explanation:
    job = state.job
    what = "all groups are done; the package is being published"
    if job.aborting:
        what = f"{job.intent_by} asked for {job.intent} while it published; the warehouse log is asked which was first"
    tried = f"tried {job.publish_tries} times: {job.reason.text}" if job.publish_tries and job.reason else ""
    return Explanation(
        job.id,
        job.status,
        what,
        0.0,
        tried,
        publish_at(job, world),
        "publishing is tried again",
        "never by itself: what is done is not thrown away because the warehouse is away",
        help=(f"unstuck cancel {job.id}",),
    )


def _because(job: JobRecord) -> str:
    return f" ({job.intent_why})" if job.intent_why else ""


# ---- groups ------------------------------------------------------------------------------------------------------


# What needs a look most comes first where not all members are shown.
_URGENT = {state: n for n, state in enumerate((S.BACKOFF, S.RUNNING, S.CANCELING, S.QUEUED, S.WAITING))}


def _planned(
    state: JobState, world: World, name: str, planned: PlannedGroup, room: Room, shown: int | None
) -> Iterator[Explanation]:
    open_members = [
        member
        for member in (state.members(name) if len(state.census[name]) else ())
        if (standing := state.record(member).state) is not S.WAITING and not standing.terminal
    ]
    open_members.sort(key=lambda member: _URGENT[state.record(member).state])
    for member in open_members[:shown]:
        yield _timed(_group(state, world, member, planned), state.record(member))
    if shown is not None and len(open_members) > shown:
        yield Explanation(name, "", f"and {len(open_members) - shown} more of its members that are not done")
    # Those that a pause took back among them: why they wait is asked of what holds now, not of what was noted then.
    waiting = Draft(state, world).waiting_members(name)
    whole = state.record(name)
    if whole.state is S.SKIPPED and whole.reason is not None and whole.reason.code == "CONDITION_FALSE":
        yield Explanation(name, whole.state, whole.reason.text, whole.since, gives_up="it was skipped; this is final")
    if waiting > 0:
        yield _waiting(state, world, name, planned, waiting, room)


def _waiting(state: JobState, world: World, name: str, planned: PlannedGroup, members: int, room: Room) -> Explanation:
    found = judge(planned.spec.join, state.needs[name])
    many = f"{members} members: " if planned.spec.for_each is not None and members > 1 else ""
    if found.verdict is Verdict.WAIT:
        open_needs = [need for need in planned.spec.needs if not state.done(need)]
        shown = ", ".join(_need(state, need) for need in open_needs[:5])
        more = f" and {len(open_needs) - 5} more" if len(open_needs) > 5 else ""
        if planned.spec.when is not None:
            more += f"; then its condition decides: {quoted(planned.spec.when)}"
        return Explanation(
            name,
            S.WAITING,
            f"{many}{found.reason.text}; waits for {shown}{more}",
            short=f"waits for {shown}{more}",
            gives_up="when these can no longer satisfy it",
        )
    if state.job.intent is not Intent.RUN:
        return Explanation(name, S.WAITING, f"{many}it may go, but {state.job.intent} was asked for")
    if not room.in_parallel:
        text = f"{many}it may go; max_parallel: {state.plan.max_parallel} are running"
    elif not room.for_(planned.spec.queue_name):
        queue = planned.spec.queue_name
        text = f"{many}it may go; {world.window(queue)} hints on queue {queue} are unclaimed"
    else:
        text = f"{many}it may go, and is queued when the job is looked at next"
    return Explanation(name, S.WAITING, text, next_what="it is queued as soon as one of them ends or is claimed")


def _need(state: JobState, need: str) -> str:
    census = state.census[need]
    count = state.plan.member_count(need, state.collected)
    if state.plan.groups[need].spec.for_each is not None:
        ended = sum(n for s, n in census.items() if GroupState(s).terminal)
        return f"{need} ({ended} of {count if count is not None else 'a number nobody knows yet'} done)"
    return f"{need} ({state.record(need).state})"


def _group(state: JobState, world: World, group_id: str, planned: PlannedGroup) -> Explanation:
    record, attempt = state.record(group_id), state.attempts.get(group_id)
    if record.state is S.QUEUED:
        return _queued(state, world, group_id, planned, record)
    if record.state in (S.RUNNING, S.CANCELING):
        return _running(state, world, group_id, planned, record, attempt)
    if record.state is S.BACKOFF:
        what = record.reason.text if record.reason else "it is to be tried again"
        at = retry_at(record, planned.retry, world)
        gives_up = f"after {planned.retry.max} retries, or {planned.spec.worker_losses} workers lost in a row"
        helps = (f"unstuck logs {state.job.id} {group_id}", f"unstuck cancel {state.job.id}")
        tried = _tried(record)
        return Explanation(
            group_id, record.state, what, record.since, tried, at, f"attempt {record.epoch + 1}", gives_up, help=helps
        )
    return Explanation(
        group_id, record.state, record.reason.text if record.reason else "it waits for its turn", record.since
    )


def _timed(one: Explanation, record: GroupRecord) -> Explanation:
    """A group in BACKOFF waits for a time; its line says which, and the code of what went wrong."""
    if record.state is not S.BACKOFF:
        return one
    return replace(one, short=f"{record.reason.code}: {record.reason.text}" if record.reason else "", timed=True)


def _queued(state: JobState, world: World, group_id: str, planned: PlannedGroup, record: GroupRecord) -> Explanation:
    queue = planned.spec.queue_name
    slots = world.slots.get(queue, 0)
    if slots:
        what = f"queue {queue}: {slots} runner{'s' if slots > 1 else ''} listen, and none has taken it yet"
        helps: tuple[str, ...] = ()
    else:
        what = f"queue {queue}: no worker listens on it"
        helps = (f"celery -A tasks worker -Q {queue}",)
    tried = f"its hint was sent {record.hints} times" if record.hints > 1 else ""
    at = overdue_at(record, world)
    gives_up = "never by itself: a worker may come at any time"
    given_up_at = queue_timeout_at(state.job, record, planned.spec.queue_timeout, world) or 0.0
    if given_up_at:
        gives_up = f"FAILED by its queue_{_timeout(planned.spec.queue_timeout)}"
    return Explanation(
        group_id,
        record.state,
        what,
        record.since,
        tried,
        at,
        "the hint is sent again if it may be lost",
        gives_up,
        given_up_at,
        helps,
    )


def _running(
    state: JobState, world: World, group_id: str, planned: PlannedGroup, record: GroupRecord, attempt: Attempt | None
) -> Explanation:
    lease = held_until(record, attempt, world) if attempt is not None else 0.0
    silent = max(0.0, world.now - (lease - world.lease_ttl)) if lease else 0.0
    what = f"worker {record.worker} runs attempt {record.epoch}; last heard of {format_duration(silent)} ago"
    given_up_at = job_timeout_at(state.job, state.plan.timeout, world) or 0.0
    timeouts = _step_timeout(planned, attempt)
    if planned.spec.timeout is not None:
        timeouts.append(f"timeout: {format_duration(planned.spec.timeout)} from its first step")
    if given_up_at:
        timeouts.append(f"the job's {_timeout(state.plan.timeout)}")
    gives_up = "; ".join(timeouts) or "no timeout is set"
    if record.state is S.CANCELING:
        what += ", and was told to end"
        gives_up = f"at the deadline, {format_duration(world.cancel_deadline)} after the cancel was asked for"
        given_up_at = 0.0
    helps = (f"unstuck logs {state.job.id} {group_id} -f", f"unstuck cancel {state.job.id}")
    next_what = "it is taken for lost if it was not heard of by then"
    return Explanation(
        group_id, record.state, what, record.since, _tried(record), lease, next_what, gives_up, given_up_at, helps
    )


def _step_timeout(planned: PlannedGroup, attempt: Attempt | None) -> list[str]:
    """What the step that runs now may take, as far as the runner has said which one that is."""
    progress = json.loads(attempt.progress) if attempt is not None and attempt.progress else {}
    number = int(progress.get("step", 0))
    if not 0 < number <= len(planned.spec.steps) or (seconds := planned.spec.steps[number - 1].timeout) is None:
        return []
    step = planned.spec.steps[number - 1]
    return [f"step {number} ({step.label}): {_timeout(seconds)}"]


def _tried(record: GroupRecord) -> str:
    parts = []
    if record.failures:
        parts.append(f"failed {record.failures} time{'s' if record.failures > 1 else ''}")
    if record.losses:
        parts.append(f"lost {record.losses} worker{'s in a row' if record.losses > 1 else ''}")
    if record.first_error is not None:
        parts.append(f"first error: {record.first_error.code}: {record.first_error.text}")
    if record.last_error is not None and record.last_error != record.first_error:
        parts.append(f"last error: {record.last_error.code}: {record.last_error.text}")
    return "; ".join(parts)
