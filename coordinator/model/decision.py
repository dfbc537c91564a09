"""The environment of ``decide``, and the decision that the reconciler commits and carries out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.tasks.protocol.keys import queue_of
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.spec.fields import Scalar

if TYPE_CHECKING:
    from unstuck.tasks.protocol.process_info import RunnerInfo
    from unstuck.tasks.settings import Settings

NOTHING: Mapping[str, int] = MappingProxyType({})
MAX_TRANSITIONS = 500  # in one commit; the rest follow with due = now


@dataclass(frozen=True, slots=True)
class CommitGuard:
    """A fact about an attempt, such as a missing claim, that the commit checks again in Redis."""

    group: str
    epoch: int
    nonce: str
    kind: Literal["lapsed", "unclaimed"]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of a try of publishing, for the next decision."""

    version: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    failed: Reason | None = None  # for good: the package can never be
    trouble: Reason | None = None  # for now: the warehouse cannot be reached
    # Why there is no version: what the streams of the job have looked at, in words.
    nothing_new: str = ""
    # Files and offsets that have arrived for its streams, beyond the bound of one job.
    left: int = 0
    # by dataset, the job that owned it before
    taken_over: Mapping[str, str] = field(default_factory=dict)
    goes_on: bool = False  # it has no result yet, and it does not hang
    # of the entry in the log, by the clock of its publisher
    at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything beside the job that a decision may use, including time and randomness.

    Attributes:
        now: seconds, by the clock of Redis.
        nonce: fresh random text for the epochs of this decision.
        takeover: whether expired leases count: the sweep is alive, and no grace period is active.
        runners: number of listening runners, by queue.
        hosts: hosts with listening runners that can run Spark, by queue.
    """

    now: float
    nonce: str
    takeover: bool = True
    runners: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, Collection[str]] = field(default_factory=dict)
    sweep_every: float = 1.0
    dispatch_timeout: float = 10.0
    dispatch_window: int | None = None
    lease_ttl: float = 15.0
    publish_timeout: float = 30.0
    cancel_deadline: float = 60.0
    published: PublishResult | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        now: float,
        nonce: str,
        listening: Mapping[str, Sequence[RunnerInfo]],
        **more: Any,
    ) -> Environment:
        """Return the environment by ``settings``; ``listening``: the runners by queue."""
        return cls(
            now=now,
            nonce=nonce,
            runners={queue: len(listeners) for queue, listeners in listening.items()},
            hosts={
                queue: {runner.host for runner in listeners if not runner.unfit}
                for queue, listeners in listening.items()
            },
            sweep_every=settings.sweep_every,
            dispatch_timeout=settings.dispatch_timeout,
            dispatch_window=settings.dispatch_window,
            lease_ttl=settings.lease_ttl,
            cancel_deadline=settings.cancel_deadline,
            **more,
        )

    def others(self, queue: str, host: str) -> list[str]:
        """Return the other hosts that listen on ``queue``."""
        return sorted({*self.hosts.get(queue, ())} - {host})

    def window(self, lane: str) -> int:
        """Return how many offers of one job may wait in one lane."""
        return self.dispatch_window or max(64, 4 * self.runners.get(queue_of(lane), 0))


@dataclass(slots=True)
class Decision:
    """Changes to commit, and actions to do after the commit."""

    job: JobRecord
    old: JobRecord
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    collected: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)  # that the store has lost, made again
    offered: dict[str, AttemptRecord] = field(default_factory=dict)
    dropped: dict[str, None] = field(default_factory=dict)
    forgotten: dict[str, None] = field(default_factory=dict)  # groups whose record is deleted
    # groups and members whose frozen inputs go
    unfrozen: dict[str, None] = field(default_factory=dict)
    # forks whose values will be collected again
    uncollected: dict[str, None] = field(default_factory=dict)
    # group → epoch, nonce, CANCEL or DRAIN
    instructions: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    guards: list[CommitGuard] = field(default_factory=list)
    # new or repeated offers → lane
    offers: dict[Offer, str] = field(default_factory=dict)
    withdrawn: dict[Offer, str] = field(default_factory=dict)  # offers that are withdrawn → lane
    publish: bool = False
    abort: Reason | None = None  # make sure that the package is never published, and say why
    new_try: bool = False  # publish or abort is a new try, and does not continue one
    notices: tuple[str, ...] = ()  # for the outbox, as JSON
    # attempts that have ended, by their outcome
    ended: Counter[str] = field(default_factory=Counter)
    # Seconds that publishing took, if this ends the job with a version.
    publishing: float | None = None
    due: float | None = None  # None: terminal, never again
    moves: int = 0
    more: bool = False  # the limit of one commit was reached: decide again at once
    # Decide from a fresh load: records were deleted that the state still holds.
    reload: bool = False

    @property
    def full(self) -> bool:
        return self.moves >= MAX_TRANSITIONS

    @property
    def empty(self) -> bool:
        """Nothing to commit."""
        changes = (
            self.groups,
            self.collected,
            self.frozen,
            self.plans,
            self.dropped,
            self.offered,
            self.instructions,
        )
        return self.job == self.old and not any(changes) and not self.reload


@dataclass(frozen=True, slots=True)
class Acks:
    """Reports that a commit acknowledges.

    Attributes:
        counts: number of reports by classification.
        refused: by entry id, the event of an outcome that was refused.
    """

    ids: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self, ended: Mapping[str, int] = NOTHING) -> dict[str, Any]:
        """Return the arguments of the commit script.

        Args:
            ended: number of attempts that end with the commit, by outcome; they use the same
                counters.
        """
        counts = {
            **self.counts,
            **{f"ATTEMPT_{outcome.upper()}": count for outcome, count in ended.items()},
        }
        return {"acks": list(self.ids), "counts": counts, "refused": dict(self.refused)}
