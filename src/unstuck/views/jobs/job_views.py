"""Reads jobs for people. The command line, apps and tests all read these views; nothing here
writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.explain.explanation import Explanation, FleetFacts, Idle
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import DONE, GroupState, Status
from unstuck.coordinator.spec.job_params import values_of
from unstuck.coordinator.spec.problems import listed, suggestion
from unstuck.coordinator.store.job_queries import Queries
from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.spec.inputs import DatasetInput
from unstuck.views.jobs.job_facts import GroupView, JobFacts


@dataclass(frozen=True, slots=True)
class ForkView:
    """One planned group with its members: a group that is not forked has one."""

    name: str
    needs: tuple[str, ...]
    join: str
    forked: bool
    param: str | None
    expanded: bool
    total: int
    census: dict[str, int]
    members: tuple[GroupView, ...]  # those with a record; the others are WAITING
    only_joins: bool = False  # it has no steps

    @property
    def done(self) -> int:
        """Members that have ended and were not canceled."""
        return sum(n for state, n in self.census.items() if state in DONE)


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at the time ``at`` (seconds, by the clock of Redis).

    Attributes:
        why: explains the job and its groups that are not done, by id, from the same read; empty
            unless asked for.
        damage: as ``JobState.damage``; then there are no groups.
        reads: the published datasets that its spec names as inputs.
        params: as its spec has them now, with their values.
    """

    job: JobFacts
    at: float
    due: float | None
    groups: tuple[ForkView, ...]
    why: Mapping[str, Explanation] = field(default_factory=dict)
    damage: str = ""
    reads: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Groups that have ended and were not canceled."""
        return sum(group.done for group in self.groups)

    @property
    def total(self) -> int:
        """Groups and members, as far as they are known."""
        return sum(group.total for group in self.groups)

    @property
    def claimed(self) -> list[GroupView]:
        """Groups and members of which a worker ever claimed an attempt."""
        return [member for group in self.groups for member in group.members if member.started_at]

    @property
    def failed(self) -> list[GroupView]:
        """Groups and members that failed, or are recovering, with an error."""
        members = (member for group in self.groups for member in group.members)
        return [
            member
            for member in members
            if member.last_error and (member.state is GroupState.FAILED or member.recovering)
        ]

    @property
    def zones(self) -> list[str]:
        """The time zones that its groups ran with: one, unless workers differ or were set anew
        meanwhile.
        """
        return sorted({member.zone for member in self.claimed} - {""})

    def planned(self, group: str) -> ForkView:
        """The planned group that a name, or the id of a member, means. Raises: NoSuchGroup."""
        names = [fork.name for fork in self.groups]
        with suppress(Malformed, ValueError):
            name, ordinal = split_member(group)
            match = self.groups[names.index(name)]
            if ordinal is None or (
                match.forked and not (match.expanded and ordinal >= match.total)
            ):
                return match
        raise NoSuchGroup(
            f"job {self.job.id} has no group {group}; it has: "
            f"{listed(names)}{suggestion(group, names)}"
        )

    def why_line(self, subject: str, at: float | None = None) -> str:
        """The reason why the job or group ``subject`` waits, in one line, as of ``at``; empty if it
        is not known.
        """
        explanation = self.why.get(subject)
        return "" if explanation is None else explanation.line(self.at if at is None else at)

    def why_fork(self, fork: ForkView, at: float | None = None) -> str:
        """The reason why a planned group waits, in one line; of a fork, the reason of its first
        member that waits.
        """
        return self.why_line(fork.name, at) or next(
            filter(None, (self.why_line(m.id, at) for m in fork.members)), ""
        )


def folded(jobs: Sequence[ListedJob]) -> list[list[ListedJob]]:
    """``jobs`` in their order, with the runs of a backfill together, and those of a schedule that
    need no attention.

    These are the runs that have FINISHED, but for the newest run of each schedule.
    """
    lines: list[list[ListedJob]] = []
    folds: dict[tuple[str, str], list[ListedJob]] = {}
    schedules: set[str] = set()
    for job in jobs:
        is_newest = bool(job.schedule) and not job.backfill and job.schedule not in schedules
        schedules |= {job.schedule} if is_newest else set()
        folds_in = job.schedule and (
            job.backfill or (job.status is Status.FINISHED and not is_newest)
        )
        line = folds.setdefault((job.schedule, job.backfill), []) if folds_in else []
        if not line:
            lines.append(line)
        line.append(job)
    return lines


def view_of(
    state: JobState, at: float, due: float | None, explained: Sequence[Explanation] = ()
) -> JobView:
    """A job as people see it, with what explains it."""
    # Without a state it only counts members that are not explained.
    why = {explanation.subject: explanation for explanation in explained if explanation.state}
    groups = tuple(_fork_view(state, name) for name in state.plan.groups)
    inputs = (
        spec_input
        for planned in state.plan.groups.values()
        for spec_input in planned.spec.inputs.values()
    )
    reads = sorted(
        {spec_input.dataset for spec_input in inputs if isinstance(spec_input, DatasetInput)}
    )
    params = {} if state.damage else values_of(state.job.written().get("params", {}))
    return JobView(JobFacts.of(state.job), at, due, groups, why, state.damage, tuple(reads), params)


def _fork_view(state: JobState, name: str) -> ForkView:
    planned = state.plan.groups[name]
    count = state.plan.member_count(name, state.collected)
    whole = state.ended_whole(name)
    total = 1 if whole or not count else count
    census = dict(+state.census[name])
    if waiting := total - sum(census.values()):
        census[GroupState.WAITING] = census.get(GroupState.WAITING, 0) + waiting
    return ForkView(
        name,
        planned.spec.needs,
        str(planned.spec.join),
        planned.spec.for_each is not None,
        planned.spec.fork_params[0] if len(planned.spec.fork_params) == 1 else None,
        count is not None or whole,
        total,
        census,
        tuple(
            _group_view(state, name, member)
            for member in state.members(name)
            if member in state.groups
        ),
        planned.spec.is_join,
    )


def _group_view(state: JobState, name: str, member: str) -> GroupView:
    _, ordinal = split_member(member)
    value = None if ordinal is None else state.plan.member_value(name, ordinal, state.collected)
    names = state.plan.groups[name].spec.fork_params
    shown = dict(zip(names, value, strict=True)) if isinstance(value, tuple) else value
    return GroupView.of(member, state.groups[member], state.attempts.get(member), shown)


def idle(queries: Queries, at: float) -> Idle:
    """For how long, at ``at`` (the time of Redis), no coordinator has looked at any job."""
    looked, period = queries.last_sweep()
    seconds = max(0.0, at - looked) if looked else 0.0
    return Idle(seconds, period) if period else Idle(seconds)


def fleet_facts(queries: Queries, state: JobState, at: float) -> FleetFacts:
    """Whether anybody looks at jobs, and where the steps of this one stand; ``at``: the time of
    Redis.
    """
    return FleetFacts(idle=idle(queries, at), stacks=queries.stacks(state))
