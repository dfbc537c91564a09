"""A job as users see it: in a list, alone, and in the answer to a command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, TypeAdapter, ValidationError, computed_field

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.records import Alteration, JobRecord, Reason
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.coordinator.model.tick import is_by_hand
from unstuck.coordinator.spec.problems import listed, suggestion
from unstuck.read_model.group import GroupInfo, Member, done_in, why_group
from unstuck.read_model.record_fields import from_record
from unstuck.tasks.errors import Malformed
from unstuck.tasks.json_fields import DEFERRED, OptionalTime, Time, Word
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.protocol.token import split_member

if TYPE_CHECKING:
    from unstuck.coordinator.model.state import JobState


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """One job. Times are seconds since the epoch; 0 if not yet.

    The fields after ``why`` are only set if the job was read alone: a list does not have them.

    Attributes:
        id: of the job.
        name: of the job, from its spec.
        status: where it stands.
        intent: last command of a user.
        intent_at: when that command was given.
        intent_by: who gave it.
        intent_why: the reason that was given with it.
        phase: of publishing; empty before all groups are done and after the publish.
        reason: why it ended as it did.
        halted: why it is HALTED until a person acts.
        timed_out: set if its timeout expired.
        submitted_at: when it was submitted.
        submitted_by: who submitted it.
        started_at: when a worker first claimed a group.
        ended_at: when it ended.
        paused_at: when it became PAUSED or HALTED.
        key: given at submit, or at the submit of the first job of a chain of retries.
        retry_of: id of the job that it retries.
        schedule: name of the schedule of which it is a run.
        backfill: id of the backfill that submitted it.
        priority: ``high``, ``normal`` or ``low``.
        revision: how often its spec was altered.
        alterations: in order; the n-th made revision n.
        warehouse: address of its warehouse.
        version: of the warehouse after its publish; 0 if it has published nothing.
        published_at: when it was published.
        published: rows by dataset.
        replaced: partitions that it replaced, by dataset.
        reruns: groups that a user told to run again, and the groups after them.
        any_code: whether it takes over work of other code.
        left: files and offsets of its streams that have arrived beyond the limit of one job.
        states: number of groups and members by state.
        total: number of groups and members; null while a dynamic fork is not expanded.
        params_text: parameters in words, cut after 100 characters.
        why: what it waits for, if it has not ended and this was asked for.
        at: when it was read.
        due_at: when a coordinator looks at it next.
        damage: what of its record cannot be read; then it has no groups.
        params: parameters with their values.
        reads: published datasets that are inputs of its groups.
        zones: time zones that its groups ran with: one, unless workers differ.
        groups: in the order of the spec.
        explanations: of the job and its groups that are not done, by id; empty unless asked for.
    """

    __pydantic_config__ = DEFERRED

    id: str
    name: str = ""
    status: Status
    intent: Intent = Intent.RUN
    intent_at: Time = 0.0
    intent_by: Word = ""
    intent_why: Word = ""
    phase: Phase = Phase.NONE
    reason: Reason | None = None
    halted: Reason | None = None
    timed_out: Reason | None = None
    submitted_at: Time = 0.0
    submitted_by: str = ""
    started_at: Time = 0.0
    ended_at: Time = 0.0
    paused_at: Time = 0.0
    key: Word = ""
    retry_of: Word = ""
    schedule: Word = ""
    backfill: Word = ""
    priority: str = "normal"
    revision: int = 0
    alterations: tuple[Alteration, ...] = ()
    warehouse: str = ""
    version: int = 0
    published_at: Time = 0.0
    published: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    reruns: tuple[str, ...] = ()
    any_code: bool = False
    left: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    params_text: str = ""
    why: Word = field(default="", repr=False)
    at: Annotated[float, Field(exclude=True)] = field(default=0.0, compare=False, repr=False)
    due_at: OptionalTime = field(default=None, compare=False, repr=False)
    damage: Word = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    groups: tuple[GroupInfo, ...] = field(default=(), repr=False)
    explanations: Annotated[Mapping[str, Explanation], Field(exclude=True)] = field(
        default_factory=dict, compare=False, repr=False
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def done(self) -> int:
        """Groups and members that have ended and were not canceled."""
        return done_in(self.states)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tick(self) -> Word:
        """The instant for which it is a run of a schedule, in ISO 8601; null for other jobs."""
        return self.key.partition("@")[2].partition("/")[0] if self.schedule else ""

    @property
    def progress(self) -> str:
        """Groups that are done, of all: ``3/12``, or ``3/?`` while ``total`` is not determined."""
        return f"{self.done}/{'?' if self.total is None else self.total}"

    @property
    def by_hand(self) -> bool:
        """Whether a person started it as a run of a schedule that belongs to no tick."""
        return bool(self.schedule) and is_by_hand(self.key)

    @property
    def took(self) -> float | None:
        """Seconds from its first claim to its end; None if it has not had both."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None

    @property
    def trouble(self) -> str:
        """Why it ended, or stopped; empty if it FINISHED."""
        return self.reason.text if self.reason and self.status is not Status.FINISHED else ""

    @property
    def terminal(self) -> bool:
        """Whether it has ended; a damaged record may have lost its status."""
        return self.status.terminal or self.ended_at > 0

    @property
    def at_rest(self) -> bool:
        """Whether it has ended, or is HALTED until a person acts."""
        return self.terminal or (self.status is Status.HALTED and self.halted is not None)

    @property
    def members(self) -> list[Member]:
        """All groups that are not forked, and members of forks, that have a record."""
        return [member for group in self.groups for member in group.members]

    @property
    def claimed(self) -> list[Member]:
        """Groups and members of which a worker ever claimed an attempt."""
        return [member for member in self.members if member.started_at]

    @property
    def failed(self) -> list[Member]:
        """Groups and members that failed, or are recovering, with an error."""
        return [
            member
            for member in self.members
            if member.last_error and (member.state is GroupState.FAILED or member.recovering)
        ]

    def planned(self, group: str) -> GroupInfo:
        """Return the planned group with this name, or of this member. Raises: NoSuchGroup."""
        names = [planned.name for planned in self.groups]
        with suppress(Malformed, ValueError):
            name, ordinal = split_member(group)
            match = self.groups[names.index(name)]
            if ordinal is None or (
                match.forked and not (match.expanded and ordinal >= match.total)
            ):
                return match
        raise NoSuchGroup(
            f"job {self.id} has no group {group}; it has: {listed(names)}{suggestion(group, names)}"
        )

    def why_line(self, subject: str, at: float | None = None) -> str:
        """Return what the job or group ``subject`` waits for at ``at``, in one line.

        The line is empty if the subject is not explained.
        """
        explanation = self.explanations.get(subject)
        return "" if explanation is None else explanation.line(self.at if at is None else at)

    def why_group(self, group: GroupInfo, at: float) -> str:
        """Return what a planned group waits for at ``at``, in one line."""
        return why_group(group.name, group.members, self.explanations, at)

    @classmethod
    def of_record(cls, record: JobRecord, **others: Any) -> JobInfo:
        """Return the job of ``record``; ``others``: fields that the record does not have."""
        return from_record(cls, record, key=record.user_key, reruns=tuple(record.reruns), **others)

    @classmethod
    def of_state(
        cls, state: JobState, at: float, due: float | None, explained: Sequence[Explanation] = ()
    ) -> JobInfo:
        """Return the job with its groups, as read at ``at``; ``due``: when it is looked at next."""
        job = state.job
        # An explanation without a state only counts members that are not explained.
        why = {explanation.subject: explanation for explanation in explained if explanation.state}
        waits = job.id in why and not job.terminal
        groups = tuple(GroupInfo.of(state, name, why, at) for name in state.plan.groups)
        claimed = [record for record in state.groups.values() if record.started_at]
        return cls.of_record(
            job,
            **state.counts,
            why=why[job.id].line(at) if waits else "",
            at=at,
            due_at=due,
            damage=state.damage,
            params=state.params,
            reads=state.plan.datasets_read,
            zones=tuple(sorted({record.zone for record in claimed} - {""})),
            groups=groups,
            explanations=why,
        )

    @classmethod
    def of_summary(cls, text: str) -> JobInfo:
        """Read a job of a list, as it is stored. Raises: ValueError."""
        try:
            return _JOB.validate_json(text)
        except ValidationError:  # pydantic's JSON has no half of a surrogate pair
            return _JOB.validate_python(json.loads(text))


_JOB: TypeAdapter[JobInfo] = TypeAdapter(JobInfo)
_ALONE = {"due_at", "damage", "params", "reads", "groups", "zones"}


def json_of_list(jobs: Sequence[JobInfo]) -> list[dict[str, Any]]:
    """Return the JSON of a list of jobs: without the fields that only a job alone has."""
    return [_JOB.dump_python(job, exclude=_ALONE) for job in jobs]


JobRows = Annotated[Sequence[JobInfo], PlainSerializer(json_of_list)]
"""Jobs of a list, whose JSON lacks the fields that only a job alone has."""
