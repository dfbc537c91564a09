"""Defines the explanation of a job or group, and the facts about the fleet that it uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstuck.tasks.duration import format_duration
from unstuck.tasks.json_fields import Time
from unstuck.tasks.protocol.step_stack import StepStack

UNSEEN_LIMIT_S = 10.0  # shortest time without a look that is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The next event, or the event that ends a wait.

    Attributes:
        what: the event in words.
        at: when it happens, or the last time if it happens several times; never in the past; 0 if
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
        timed: whether it waits only for the time of ``next``.
        since: when it entered its state; for a waiting group without a record, when its wait
            started.
        tried: earlier attempts, in words; empty without one.
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
    """How long no coordinator has swept, and how often a healthy coordinator sweeps.

    Attributes:
        seconds: time since the last sweep; 0 if there was never a sweep.
        period: UNSTUCK_SWEEP_EVERY of the coordinator that swept last, in seconds.
    """

    seconds: float = 0.0
    period: float = 1.0

    @property
    def limit(self) -> float:
        """Seconds without a sweep after which this is reported."""
        return max(UNSEEN_LIMIT_S, longest_gap(self.period))


AT_WORK = Idle()


def longest_gap(period: float) -> float:
    """Return the longest time between two sweeps of a healthy fleet.

    Without beat, a sweep comes after two periods.
    """
    return 3 * period + 1


@dataclass(frozen=True, slots=True)
class Unlike:
    """The runners of a queue that cannot run a job: they have other versions, or no Spark.

    Attributes:
        text: the difference in words.
        nobody: whether the queue has no other runner.
        no_spark: whether none of these runners can run Spark.
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
