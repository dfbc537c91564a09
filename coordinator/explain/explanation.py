"""Hold the explanation of a job or group, and the facts that explanations of a job share. Pure."""

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
UNSEEN_LIMIT_S = 10.0  # shortest time without a look that is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The next event, or the event that ends a wait.

    Attributes:
        what: the event in words.
        at: when it happens, or when the last of several happens; never earlier than now, and 0 if
            unknown.
    """

    what: str = ""
    at: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job or a group is in its state.

    Times are seconds by the clock of Redis, and 0 if there is none.

    Attributes:
        subject: the group, or the id of the job.
        state: its state or status.
        what: a sentence that says what it waits for, or how it ended.
        short: a shorter form of ``what``; empty if ``what`` is short.
        timed: it waits for the time of ``next`` more than for anything else.
        since: when it entered its state; for a waiting group without a record, when its wait began.
        tried: earlier attempts; empty without one.
        next: the next event.
        ends: the event that ends the wait.
        help: commands that would help.
        stack: the stack of its running step, if it was read.
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
        """Return the wait in one line at the time ``at``: ``attempt 3 in 12s: STEP_FAILED: …``."""
        text = " ".join((self.short or self.what).split())
        if not self.timed:
            return text
        wait = self.next.at - at
        when = f"in {format_duration(wait)}" if wait > 0 else "now"
        return f"{self.next.what} {when}: {text}"


@dataclass(frozen=True, slots=True)
class Idle:
    """How long no coordinator has looked at any job, and how often a healthy coordinator looks.

    Attributes:
        seconds: time since the last sweep; 0 if there was never a sweep.
        period: UNSTUCK_SWEEP_EVERY of the coordinator that swept last, in seconds.
    """

    seconds: float = 0.0
    period: float = 1.0

    @property
    def limit(self) -> float:
        """Seconds without a look that are reported."""
        return max(UNSEEN_LIMIT_S, longest_gap(self.period))


AT_WORK = Idle()


def longest_gap(period: float) -> float:
    """Return the longest time between two sweeps of a healthy fleet.

    Without beat, a sweep comes after two periods.
    """
    return 3 * period + 1


def ahead(at: float, env: Environment, due: float | None) -> float:
    """Return ``at`` if it lies ahead, and else the time of the next look at the job."""
    if at > env.now:
        return at
    return 0.0 if due is None else max(due, env.now)


def stands_still(job: JobRecord) -> bool:
    """Return whether nothing of the job starts before a resume: it is paused, or halted.

    A halted job that the user ends does not stand still.
    """
    return job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)


@dataclass(frozen=True, slots=True)
class Unlike:
    """The runners of a queue that cannot take a job: other versions, or no Spark.

    Attributes:
        text: the difference in words.
        nobody: no other runner listens on the queue.
        no_spark: none of them runs Spark.
    """

    text: str
    nobody: bool
    no_spark: bool


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Facts outside the record of a job that explain a wait.

    Attributes:
        durations: seconds that groups ran when they succeeded in earlier jobs; see
            `Queries.durations`.
        idle: how long no coordinator has looked at any job; see `Queries.idle`.
        unread: queues whose messages no idle runner reads, with a text; see `unread_messages`.
        busy: queues whose runners are all busy or unfit, with a text; see `nobody_takes`.
        pools: pools without a free slot, with a text; see `full_pools`.
        code: a text if the workers run different code; see `different_code_for`.
        unlike: runners with other versions than the job; see `unlike_runners`.
        stacks: stacks of the running groups that were read; see `Queries.stacks`.
        again: commands that run the ended job again; None: a retry does.
    """

    durations: Mapping[str, Sequence[float]] = field(default_factory=dict)
    idle: Idle = AT_WORK
    unread: Mapping[str, str] = field(default_factory=dict)
    busy: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    unlike: Mapping[tuple[str, bool], Unlike] = field(default_factory=dict)
    stacks: Mapping[str, StepStack] = field(default_factory=dict)
    again: tuple[str, ...] | None = None


NOTHING_KNOWN = FleetFacts()


class ExplanationFacts:
    """Facts that the explanations of all groups of a job share, computed once."""

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
        self.cut = _cuts_running(job)
        self._canceled = _why_canceled(state, draft)
        self._outlived = job.intent in (Intent.RUN, Intent.PAUSE) and job.timed_out is None
        # By planned group: when the last of its ended members ended.
        self.done: dict[str, float] = {}
        for group_id, record in state.groups.items():
            if record.state.terminal:
                name, _ = split_member(group_id)
                self.done[name] = max(self.done.get(name, 0.0), record.since)

    def canceled(self, planned: PlannedGroup) -> str:
        """Return why this group is canceled unless it is done or running; empty if it is not."""
        return "" if self._outlived and planned.spec.join.outlives_failure else self._canceled

    def ahead(self, at: float) -> float:
        return ahead(at, self.env, self.due)

    def ends(self, own: str, at: float = 0.0) -> Event:
        """Return when a group gives up: by its ``own`` rule, or by the timeout of the job."""
        over = job_timeout_at(self.state.job, self.state.plan.timeout, self.env) or 0.0
        if not over or 0 < at <= over:
            return Event(what=own, at=at)
        return Event(what=f"{own}; or by the job's {timeout_of(self.state.plan.timeout)}", at=over)


def _cuts_running(job: JobRecord) -> bool:
    """Return whether running attempts of canceled groups are ended, too."""
    if stands_still(job):
        return False
    at_once = job.intent in (Intent.RUN, Intent.FORCE_STOP)
    return at_once or (job.intent is Intent.STOP and job.timed_out is not None)


def _why_canceled(state: JobState, draft: Draft) -> str:
    """Return why every group that is not done and not running is canceled; empty if not so."""
    job = state.job
    if job.intent not in (Intent.RUN, Intent.PAUSE):
        return f"{job.intent} was asked for"
    if job.timed_out is not None:
        return job.timed_out.text
    if draft.failing_fast:
        return f"group {state.first_failed} failed, and on_failure is cancel_others"
    return ""


def ways_to_end(job: JobRecord) -> tuple[str, ...]:
    """Return the commands that end a job sooner than it ends by itself."""
    cancel, force = f"unstuck cancel {job.id}", f"unstuck force-stop {job.id}"
    match job.intent:
        case Intent.FORCE_STOP:
            return ()
        case Intent.CANCEL:
            return (force,)
        case Intent.STOP:
            return cancel, force
        case _:
            return (cancel,)


def timeout_of(seconds: float | None) -> str:
    return "" if seconds is None else f"timeout of {format_duration(seconds)}"
