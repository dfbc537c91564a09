"""Explanation: what is said of one job or group, and what all explanations of a job are made from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unstuck.coordinator.decide.deadlines import job_timeout_at
from unstuck.coordinator.decide.dispatch import Room
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import Attempt, GroupRecord, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.token import split_member

PATIENCE = 10.0  # seconds for which nobody may look at a job, however often the fleet sweeps


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is where it is. Times are seconds by the clock of Redis; 0 where there is none.

    Attributes:
        subject: the group, or the job's id.
        state: its state or status.
        what: what it waits for, or how it came to end so, in a sentence.
        short: the same in a few words, where ``what`` is longer than that.
        timed: it waits for a time, ``next_at``, more than for anything else.
        since: when it came there; of what waits with nothing on record, since when it could have gone or waits.
        tried: what has been tried so far; empty if nothing had to be.
        next_at: when it is looked at next, never earlier than now, and ``next_what`` what happens then.
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


@dataclass(frozen=True, slots=True)
class Idle:
    """How long no coordinator has looked at any job, against how often one does while all is well.

    Attributes:
        seconds: since the last tick of a sweep; 0 if there never was one.
        period: UNSTUCK_SWEEP_EVERY of whoever swept last, in seconds.
    """

    seconds: float = 0.0
    period: float = 1.0

    @property
    def patience(self) -> float:
        """Seconds after which it is worth a word that nobody looks."""
        return max(PATIENCE, longest_gap(self.period))


AT_WORK = Idle()


def longest_gap(period: float) -> float:
    """Seconds that may lie between two sweeps of a fleet that is well: without beat they come after two periods."""
    return 3 * period + 1


def ahead(at: float, env: Environment, due: float | None) -> float:
    """``at``; or, where that has come, when the job is looked at next: nothing happens before that."""
    if at > env.now or due is None:
        return at if at > env.now else 0.0
    return max(due, env.now)


def held(job: JobRecord) -> bool:
    """Nothing of it is started before a resume: it is paused, or halted and not asked to end."""
    return job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)


class Seen:
    """One job as it is explained, with what is asked of all its groups together and worked out once."""

    def __init__(
        self,
        state: JobState,
        env: Environment,
        due: float | None,
        took: Mapping[str, float],
        lying: Mapping[str, str],
        busy: Mapping[str, str],
    ) -> None:
        """``took``: seconds that groups took when they last succeeded. ``lying``, ``busy``: see `explain`."""
        self.state, self.env, self.due = state, env, due
        self.took, self.lying, self.busy = took, lying, busy
        draft = Draft(state, env)
        self.room = Room(draft)
        job = state.job
        self.next_at = ahead(0.0, env, due)
        self.help = (f"unstuck resume {job.id}", f"unstuck cancel {job.id}") if held(job) else ways_to_end(job)
        self.ends = ""  # why whatever is not done and not at work is canceled, if so
        if job.intent not in (Intent.RUN, Intent.PAUSE):
            self.ends = f"{job.intent} was asked for"
        elif job.timed_out is not None:
            self.ends = job.timed_out.text
        elif draft.doomed:
            self.ends = f"group {next(iter(state.fatal))} failed, and on_failure is cancel_others"
        at_once = job.intent in (Intent.RUN, Intent.FORCE_STOP)
        at_once |= job.intent is Intent.STOP and job.timed_out is not None
        self.cut = bool(self.ends) and at_once and not held(job)  # and what is at work is ended, too
        self.done: dict[str, float] = {}  # planned group → when the last of its members that ended did so
        for group_id, record in state.groups.items():
            if record.state.terminal:
                name, _ = split_member(group_id)
                self.done[name] = max(self.done.get(name, 0.0), record.since)

    def gives_up(self, own: str, at: float = 0.0) -> tuple[str, float]:
        """When a group of a job that is to run gives up: by its ``own`` rule, or by the timeout of the job."""
        over = job_timeout_at(self.state.job, self.state.plan.timeout, self.env) or 0.0
        if not over or 0 < at <= over:
            return own, at
        return f"{own}; or by the job's {timeout_of(self.state.plan.timeout)}", over


def ways_to_end(job: JobRecord) -> tuple[str, ...]:
    """Commands that end a job sooner than it does by itself."""
    if job.intent is Intent.FORCE_STOP:
        return ()
    cancel, force = f"unstuck cancel {job.id}", f"unstuck force-stop {job.id}"
    if job.intent is Intent.CANCEL:
        return (force,)
    return (cancel, force) if job.intent is Intent.STOP else (cancel,)


def timeout_of(seconds: float | None) -> str:
    return "" if seconds is None else f"timeout of {format_duration(seconds)}"


def attempts_told(number: int, told: str) -> str:
    """``2 attempts are still running``, also of one."""
    one = {"are": "is", "have": "has"}
    verb, _, rest = told.partition(" ")
    return f"{number} attempts {told}" if number != 1 else f"1 attempt {one[verb]} {rest}"


def step_timeout(planned: PlannedGroup, attempt: Attempt | None) -> list[str]:
    """What the step that runs now may take, as far as the runner has said which one that is."""
    number = 0 if attempt is None else int(attempt.told.get("step", 0))
    if not 0 < number <= len(planned.spec.steps) or (seconds := planned.spec.steps[number - 1].timeout) is None:
        return []
    step = planned.spec.steps[number - 1]
    return [f"step {number} ({step.label}): {timeout_of(seconds)}"]


def tried_so_far(record: GroupRecord) -> str:
    """What became of earlier attempts; empty if there is nothing to tell."""
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
