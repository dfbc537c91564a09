"""The explanation of one job or group, and the facts that all explanations of a job share
(pure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstuck.coordinator.decide.dispatch import Room
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration
from unstuck.tasks.json_fields import Time
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.protocol.token import split_member

A_PERSON = "a person decides"
UNSEEN_LIMIT = 10.0  # seconds for which nobody may look at a job, however often the fleet sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The event that comes next, or ends the wait, in words; ``at`` is its time, or that of the
    last one named there.

    The time is never earlier than now, and 0 where it is unknown.
    """

    what: str = ""
    at: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job or a group is where it is. Times are seconds by the clock of Redis; 0 where there
    is none.

    Attributes:
        subject: the group, or the job's id.
        state: its state or status.
        what: what it waits for, or how it came to end so, in a sentence.
        short: the same in a few words, where ``what`` is longer than that.
        timed: it waits for the time of ``next`` more than for anything else.
        since: when it came there; for a waiting group without a record, since when it waits or
            could have gone.
        tried: what has been tried so far; empty if nothing had to be.
        help: commands that would help.
        stack: where its step stands, if it runs long.
    """

    subject: str
    state: str
    what: str
    short: str = ""
    timed: bool = False
    since: Time = 0.0
    tried: str = ""
    next: Event = Event()
    ends: Event = Event()
    help: tuple[str, ...] = ()
    stack: StepStack | None = None

    def line(self, at: float) -> str:
        """The wait in one line, as it reads at the time ``at``: ``attempt 3 in 12s: STEP_FAILED:
        …``.
        """
        text = " ".join((self.short or self.what).split())
        if not self.timed:
            return text
        wait = self.next.at - at
        return f"{self.next.what} {f'in {format_duration(wait)}' if wait > 0 else 'now'}: {text}"


@dataclass(frozen=True, slots=True)
class Idle:
    """How long no coordinator has looked at any job, against how often one does while all is well.

    Attributes:
        seconds: since the last tick of a sweep; 0 if there never was one.
        period: UNSTUCK_SWEEP_EVERY of the coordinator that swept last, in seconds.
    """

    seconds: float = 0.0
    period: float = 1.0

    @property
    def limit(self) -> float:
        """Seconds after which it is worth a word that nobody looks."""
        return max(UNSEEN_LIMIT, longest_gap(self.period))


AT_WORK = Idle()


def longest_gap(period: float) -> float:
    """Seconds that may lie between two sweeps of a fleet that is well: without beat they come after
    two periods.
    """
    return 3 * period + 1


def ahead(at: float, env: Environment, due: float | None) -> float:
    """``at``; or, where that has come, when the job is looked at next: nothing happens before
    that.
    """
    if at > env.now or due is None:
        return at if at > env.now else 0.0
    return max(due, env.now)


def stands_still(job: JobRecord) -> bool:
    """Nothing of it is started before a resume: it is paused, or halted and not asked to end."""
    return job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)


@dataclass(frozen=True, slots=True)
class Unlike:
    """The runners of a queue that have other versions than the job, or no Spark, in words.

    Attributes:
        nobody: nobody else listens there.
        no_spark: none of them runs Spark.
    """

    text: str
    nobody: bool
    no_spark: bool


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Facts that explain a wait and do not stand on the record of the job.

    Attributes:
        durations: seconds that groups ran when they succeeded in earlier jobs; see
            `Queries.durations`.
        idle: for how long no coordinator has looked at any job; see `Queries.idle`.
        unread: queues whose messages no idle runner reads, with the words for it; see
            `unread_messages`.
        busy: queues whose runners are all at work or unfit, with the words for it; see
            `nobody_takes`.
        pools: pools without a free slot, with the words for it; see `full_pools`.
        code: that its workers run different code, in words; see `different_code_for`.
        unlike: runners that have other versions than the job; see `unlike_runners`.
        stacks: where the steps of running groups stand, as far as that was looked at; see
            `Queries.stacks`.
    """

    durations: Mapping[str, Sequence[float]] = field(default_factory=dict)
    idle: Idle = AT_WORK
    unread: Mapping[str, str] = field(default_factory=dict)
    busy: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    unlike: Mapping[tuple[str, bool], Unlike] = field(default_factory=dict)
    stacks: Mapping[str, StepStack] = field(default_factory=dict)


NOTHING_KNOWN = FleetFacts()


class ExplanationFacts:
    """Facts that the explanations of all groups of a job need, worked out once."""

    def __init__(
        self, state: JobState, env: Environment, due: float | None, fleet: FleetFacts
    ) -> None:
        self.state, self.env, self.due, self.fleet = state, env, due, fleet
        draft = Draft(state, env)
        self.room = Room(draft)
        job = state.job
        self.look_at = ahead(0.0, env, due)  # when the job is looked at next
        self.help = (
            (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")
            if stands_still(job)
            else ways_to_end(job)
        )
        canceled = ""  # why every group that is not done and not at work is canceled, if so
        if job.intent not in (Intent.RUN, Intent.PAUSE):
            canceled = f"{job.intent} was asked for"
        elif job.timed_out is not None:
            canceled = job.timed_out.text
        elif draft.failing_fast:
            canceled = f"group {state.first_failed} failed, and on_failure is cancel_others"
        at_once = job.intent in (Intent.RUN, Intent.FORCE_STOP)
        at_once |= job.intent is Intent.STOP and job.timed_out is not None
        self.cut = at_once and not stands_still(
            job
        )  # running attempts of what is canceled are ended, too
        self._canceled, self._outlived = (
            canceled,
            job.intent in (Intent.RUN, Intent.PAUSE) and job.timed_out is None,
        )
        self.done: dict[
            str, float
        ] = {}  # planned group → when the last of its members that ended did so
        for group_id, record in state.groups.items():
            if record.state.terminal:
                name, _ = split_member(group_id)
                self.done[name] = max(self.done.get(name, 0.0), record.since)

    def canceled(self, planned: PlannedGroup) -> str:
        """Why this group is canceled if it is not done and not at work; empty if it is not."""
        return "" if self._outlived and planned.spec.join.outlives_failure else self._canceled

    def ahead(self, at: float) -> float:
        return ahead(at, self.env, self.due)

    def ends(self, own: str, at: float = 0.0) -> Event:
        """When a group of a job that is to run gives up: by its ``own`` rule, or by the timeout of
        the job.
        """
        over = job_timeout_at(self.state.job, self.state.plan.timeout, self.env) or 0.0
        if not over or 0 < at <= over:
            return Event(what=own, at=at)
        return Event(what=f"{own}; or by the job's {timeout_of(self.state.plan.timeout)}", at=over)


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
