"""A group of a job with its members, as users see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import computed_field

from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import DONE, GroupState
from unstuck.read_model.record_fields import from_record
from unstuck.tasks.json_fields import Time, Word
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.spec.fields import ForkItem
from unstuck.tasks.spec.outputs import REJECTED

if TYPE_CHECKING:
    from unstuck.coordinator.model.state import JobState


@dataclass(frozen=True, kw_only=True)
class OutputQuality:
    """The rows of an output with rules.

    Attributes:
        rows: number of accepted rows.
        rejected: number of rejected rows.
        rules: number of rejected rows by rule.
    """

    rows: int
    rejected: int
    rules: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A group that is not forked, or one member of a fork.

    Times are seconds since the epoch; 0 if not yet.

    Attributes:
        id: of the group; of a member of a fork, with its number.
        value: of the fork for this member; by parameter if the fork has several.
        state: where it stands.
        reason: why it is in its state.
        why: what it waits for, if it is not done.
        attempt: number of the newest attempt; 0 before the first.
        worker: host and process that run the newest attempt, or ran it.
        since: when its state was entered.
        started_at: when an attempt was claimed first.
        next_at: when the next attempt may start (BACKOFF).
        claimed_at: when the running attempt was claimed.
        progress: last report of its runner: ``step``, ``steps``, ``label``, ``done``, ``total``, …
        stack: where its step is, if it has run for long.
        revision: revision of the job's spec with which the newest attempt runs.
        failures: failures of the user's code since the last success or resume.
        losses: workers lost in a row.
        releases: attempts that stopping workers handed back.
        recovering: whether it failed or was lost, and has not succeeded since.
        adopted: whether its work was taken over from another job.
        folder: in the warehouse, of the attempt whose output counts; null if there is none.
        rows: by output.
        quality: by output that has rules.
        results: recorded by its steps.
        first_error: first error since the last success.
        last_error: last error since the last success.
        zone: time zone of the newest attempt; null until one has ended.
    """

    id: str
    value: ForkItem | Mapping[str, ForkItem] | None = None
    state: GroupState
    reason: Reason | None
    why: Word = ""
    attempt: int
    worker: str
    since: Time
    started_at: Time
    next_at: Time
    claimed_at: Time = 0.0
    progress: Mapping[str, Any] = field(default_factory=dict)
    stack: StepStack | None = None
    revision: int
    failures: int
    losses: int
    releases: int
    recovering: bool
    adopted: bool
    folder: Word
    rows: Mapping[str, int]
    quality: Mapping[str, OutputQuality]
    results: Mapping[str, Any]
    first_error: Failure | None
    last_error: Failure | None
    zone: Word

    @property
    def errors(self) -> dict[str, Failure]:
        """The last error, and the first one if it differs, each with a label."""
        first, last = self.first_error, self.last_error
        if last is None:
            return {}
        if first is None or first == last:
            return {"error": last}
        return {"first error": first, "last error": last}

    @classmethod
    def of(cls, state: JobState, name: str, member: str, why: Explanations, at: float) -> Member:
        """Return the group or member ``member`` of the planned group ``name``."""
        record, attempt = state.groups[member], state.attempts.get(member)
        live: dict[str, Any] = {}
        if attempt is not None:
            live = {
                "claimed_at": attempt.claimed_at,
                "progress": attempt.shown_progress,
                "worker": attempt.worker or record.worker,
            }
        explanation = why.get(member)
        if explanation is not None:
            live |= {"why": explanation.line(at), "stack": explanation.stack}
        return from_record(
            cls,
            record,
            id=member,
            value=_value(state, name, member),
            attempt=record.epoch,
            folder=record.marked,
            quality=_quality(record.rows, record.rejected) if record.rejected else {},
            **live,
        )


Explanations = Mapping[str, Explanation]


def _value(state: JobState, name: str, member: str) -> ForkItem | Mapping[str, ForkItem] | None:
    _, ordinal = split_member(member)
    if ordinal is None:
        return None
    value = state.plan.member_value(name, ordinal, state.collected)
    params = state.plan.groups[name].spec.fork_params
    return dict(zip(params, value, strict=True)) if isinstance(value, tuple) else value


def _quality(
    rows: Mapping[str, int], rejected: Mapping[str, Mapping[str, int]]
) -> dict[str, OutputQuality]:
    return {
        name: OutputQuality(
            rows=rows.get(name, 0), rejected=rows.get(name + REJECTED, 0), rules=rules
        )
        for name, rules in rejected.items()
    }


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """A planned group. A group that is not forked has one member.

    Attributes:
        name: of the group.
        needs: groups that it runs after.
        join: rule by which it runs after the groups that it needs.
        forked: whether it has several members.
        param: parameter of the fork, if it has exactly one.
        expanded: whether the members of a dynamic fork are determined.
        total: number of members.
        states: number of members by state.
        why: what it waits for; of a fork, what its first waiting member waits for.
        only_joins: whether it has no steps.
        members: those with a record; the others are WAITING.
    """

    name: str
    needs: tuple[str, ...]
    join: str
    forked: bool
    param: str | None
    expanded: bool
    total: int
    states: Mapping[str, int]
    why: Word = ""
    only_joins: bool = False
    members: tuple[Member, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def done(self) -> int:
        """Members that have ended and were not canceled."""
        return done_in(self.states)

    @classmethod
    def of(cls, state: JobState, name: str, why: Explanations, at: float) -> GroupInfo:
        """Return the planned group ``name`` of a job."""
        spec = state.plan.groups[name].spec
        count = state.plan.member_count(name, state.collected)
        whole = state.ended_whole(name)
        total = 1 if whole or not count else count
        states = dict(+state.census[name])
        if waiting := total - sum(states.values()):
            states[GroupState.WAITING] = states.get(GroupState.WAITING, 0) + waiting
        members = tuple(
            Member.of(state, name, member, why, at)
            for member in state.members(name)
            if member in state.groups
        )
        params = spec.fork_params
        return cls(
            name=name,
            needs=spec.needs,
            join=str(spec.join),
            forked=spec.for_each is not None,
            param=params[0] if len(params) == 1 else None,
            expanded=count is not None or whole,
            total=total,
            states=states,
            why=why_group(name, members, why, at),
            members=members,
            only_joins=spec.is_join,
        )


def done_in(states: Mapping[str, int]) -> int:
    """Return how many groups have ended and were not canceled."""
    return sum(n for state, n in states.items() if state in DONE)


def why_group(name: str, members: Iterable[Member], why: Explanations, at: float) -> str:
    """Return what a planned group waits for at ``at``, in one line; empty if it does not wait."""
    subjects = chain([name], (member.id for member in members)) if why else ()
    return next((why[subject].line(at) for subject in subjects if subject in why), "")
