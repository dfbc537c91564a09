"""Reads jobs for people. The command line, apps and tests all read these views; nothing here writes."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import redis
from pydantic import TypeAdapter

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.explain.explanation import Explanation, FleetFacts, Idle
from unstuck.coordinator.model.loading import state_of
from unstuck.coordinator.model.records import GroupRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import DONE, GroupState, Status
from unstuck.coordinator.model.tick import is_by_hand
from unstuck.coordinator.spec.job_params import values_of
from unstuck.coordinator.spec.problems import listed, suggestion
from unstuck.coordinator.views.jobs.job_facts import GroupView, JobFacts
from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.spec.inputs import DatasetInput
from unstuck.tasks.transport.stack_store import StackStore


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
        why: explains the job and its groups that are not done, by id, from the same read; empty unless asked for.
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
        every = (member for group in self.groups for member in group.members)
        return [one for one in every if one.last_error and (one.state is GroupState.FAILED or one.recovering)]

    @property
    def zones(self) -> list[str]:
        """The time zones that its groups ran with: one, unless workers differ or were set anew meanwhile."""
        return sorted({member.zone for member in self.claimed} - {""})

    def planned(self, group: str) -> ForkView:
        """The planned group that a name, or the id of a member, means. Raises: NoSuchGroup."""
        names = [one.name for one in self.groups]
        with suppress(Malformed, ValueError):
            name, ordinal = split_member(group)
            found = self.groups[names.index(name)]
            if ordinal is None or (found.forked and not (found.expanded and ordinal >= found.total)):
                return found
        raise NoSuchGroup(f"job {self.job.id} has no group {group}; it has: {listed(names)}{suggestion(group, names)}")

    def why_line(self, subject: str, at: float | None = None) -> str:
        """The reason why the job or group ``subject`` waits, in one line, as of ``at``; empty if it is not known."""
        found = self.why.get(subject)
        return "" if found is None else found.line(self.at if at is None else at)

    def why_fork(self, fork: ForkView, at: float | None = None) -> str:
        """The reason why a planned group waits, in one line; of a fork, the reason of its first member that waits."""
        return self.why_line(fork.name, at) or next(filter(None, (self.why_line(m.id, at) for m in fork.members)), "")


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One line of ``list``.

    Attributes:
        params: in words, and cut where they are long.
        schedule: of which it is a run; ``backfill``: when the backfill was given that submitted it, if one did.
    """

    id: str
    name: str
    status: Status
    submitted_at: float
    started_at: float
    ended_at: float
    groups: dict[str, int]
    total: int | None
    version: int
    reason: Reason | None
    key: str = ""
    params: str = ""
    schedule: str = ""
    backfill: str = ""

    @property
    def tick(self) -> str:
        """The instant for which it is a run, in ISO 8601, as its key names it; empty for a job without a schedule."""
        return self.key.partition("@")[2].partition("/")[0] if self.schedule else ""

    @property
    def by_hand(self) -> bool:
        """Whether a person started it as a run of a schedule that belongs to no tick."""
        return bool(self.schedule) and is_by_hand(self.key)

    @property
    def done(self) -> int:
        """Groups that have ended and were not canceled."""
        return sum(n for state, n in self.groups.items() if state in DONE)

    @property
    def took(self) -> float | None:
        """Seconds from its first claim to its end; None if it has not had both."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None

    @property
    def trouble(self) -> str:
        """The sentence of how it ended, or of what stopped it; empty if it FINISHED."""
        return self.reason.text if self.reason and self.status is not Status.FINISHED else ""


def folded(jobs: Sequence[ListedJob]) -> list[list[ListedJob]]:
    """``jobs`` in their order, with the runs of a backfill together, and those of a schedule that need no attention.

    These are the runs that have FINISHED, but for the newest run of each schedule.
    """
    lines: list[list[ListedJob]] = []
    folds: dict[tuple[str, str], list[ListedJob]] = {}
    known: set[str] = set()
    for job in jobs:
        is_newest = bool(job.schedule) and not job.backfill and job.schedule not in known
        known |= {job.schedule} if is_newest else set()
        folds_in = job.schedule and (job.backfill or (job.status is Status.FINISHED and not is_newest))
        line = folds.setdefault((job.schedule, job.backfill), []) if folds_in else []
        if not line:
            lines.append(line)
        line.append(job)
    return lines


EARLIER = 500  # jobs, of any name, that are searched for earlier jobs of one name
SAME_NAME = 20  # of these, how many are read


class Queries:
    """Read-only views on one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys

    def state(self, job: str) -> tuple[JobState, float, float | None] | None:
        """The state of a job as a decision sees it, the time of Redis, and when the job is due.

        Also of a damaged job; see ``JobState.damage``.
        """
        keys = self._keys.of(job)
        pipe = self._redis.pipeline(transaction=True)
        for key in (keys.job, keys.groups, keys.forks, keys.attempts):
            pipe.hgetall(key)
        pipe.hkeys(keys.inputs)
        pipe.zscore(self._keys.due, job)
        pipe.time()
        fields, groups, forks, attempts, frozen, due, (seconds, micros) = pipe.execute()
        if not fields:
            return None
        state = state_of(job, fields, groups, forks, attempts, frozen)
        return state, seconds + micros / 1e6, None if due is None else float(due)

    def jobs(
        self,
        status: Sequence[Status] = (),
        name: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> list[ListedJob]:
        """Jobs, the newest first. The arguments mean what they mean for ``Client.jobs``."""
        low = "-inf" if since is None else since
        indexes = [self._keys.status(one) for one in status] or [self._keys.jobs]
        number = -1 if name or limit is None else limit
        # At one moment: a job that moves from one status to another would else be found twice, or not at all.
        pipe = self._redis.pipeline(transaction=True)
        for index in indexes:
            pipe.zrevrangebyscore(index, "+inf", low, start=0, num=number, withscores=True)
        found: list[tuple[str, float]] = [item for items in pipe.execute() for item in items]
        found.sort(key=lambda item: item[1], reverse=True)
        listed: list[ListedJob] = []
        for start in range(0, len(found), 500):
            ids = [job for job, _ in found[start : start + 500]]
            for line in self.listed(ids):
                if name is None or fnmatch.fnmatchcase(line.name, name):
                    listed.append(line)
                if len(listed) == limit:
                    return listed
        return listed

    def listed(self, jobs: Sequence[str]) -> list[ListedJob]:
        """Those of these jobs that are in the store, in their order."""
        texts = cast(list[str | None], self._redis.hmget(self._keys.summary, jobs)) if jobs else []
        return [read_line(text) for text in texts if text is not None]

    def failed(self) -> list[ListedJob]:
        """The jobs of the index of failed jobs, the last failure first."""
        jobs = cast(list[str], self._redis.hvals(self._keys.failed))
        return sorted(self.listed(jobs), key=lambda job: -job.ended_at)

    def events(self, job: str, after: str = "-", count: int = 10_000) -> list[tuple[str, dict[str, Any]]]:
        """The job's event log from the entry after ``after`` (``-``: from its beginning), the oldest first."""
        low = "-" if after == "-" else f"({after}"
        entries = cast(
            list[tuple[str, dict[str, str]]], self._redis.xrange(self._keys.of(job).events, min=low, count=count)
        )
        return [(entry_id, _event(entry_id, fields)) for entry_id, fields in entries]

    def newest_events(self, job: str, count: int, before: str = "+") -> list[tuple[str, dict[str, Any]]]:
        """At most ``count`` entries of the job's event log before the entry ``before``, the newest first."""
        high = "+" if before == "+" else f"({before}"
        entries = cast(
            list[tuple[str, dict[str, str]]], self._redis.xrevrange(self._keys.of(job).events, max=high, count=count)
        )
        return [(entry_id, _event(entry_id, fields)) for entry_id, fields in entries]

    def every_event(self, job: str) -> Iterator[dict[str, Any]]:
        """The whole event log of a job, the oldest first."""
        after = "-"
        while page := self.events(job, after):
            yield from (event for _, event in page)
            after = page[-1][0]

    def idle(self, at: float) -> Idle:
        """For how long, at ``at`` (the time of Redis), no coordinator has looked at any job."""
        looked, period = cast(list[str | None], self._redis.hmget(self._keys.alive, ["at", "period"]))
        seconds = max(0.0, at - float(looked)) if looked else 0.0
        return Idle(seconds, float(period)) if period else Idle(seconds)

    def durations(self, state: JobState) -> dict[str, list[float]]:
        """Seconds that groups which run now took when they succeeded in earlier jobs of the same name.

        Only of jobs among the last ``EARLIER`` before this one, and of at most 500 groups.
        """
        groups = [group for group in state.active if state.record(group).state is GroupState.RUNNING][:500]
        if not groups:
            return {}
        low = f"({state.job.submitted_at!r}"
        ids = cast(list[str], self._redis.zrevrangebyscore(self._keys.jobs, low, "-inf", start=0, num=EARLIER))
        summaries = cast(list[str | None], self._redis.hmget(self._keys.summary, ids)) if ids else []
        name = state.job.name
        same = [other for other, text in zip(ids, summaries, strict=True) if text and read_line(text).name == name]
        pipe = self._redis.pipeline(transaction=False)
        for other in same[:SAME_NAME]:
            pipe.hmget(self._keys.of(other).groups, groups)
        durations: dict[str, list[float]] = {}
        for texts in pipe.execute():
            for group_id, text in zip(groups, texts, strict=True):
                record = GroupRecord.readable(text) if text else None
                if record is not None and record.state is GroupState.SUCCEEDED and not record.adopted:
                    durations.setdefault(group_id, []).append(max(0.0, record.since - record.started_at))
        return durations

    def facts(self, state: JobState, at: float) -> FleetFacts:
        """Whether anybody looks at jobs, and where the steps of this one stand; ``at``: the time of Redis."""
        return FleetFacts(idle=self.idle(at), stacks=self.stacks(state))

    def stacks(self, state: JobState) -> dict[str, StepStack]:
        """Where the steps of groups stand that run long, by group."""
        running = [*state.by_state[GroupState.RUNNING], *state.by_state[GroupState.CANCELING]]
        seen = StackStore(self._redis, self._keys).of_job(state.job.id) if running else {}
        stacks = {}
        for group in running if seen else ():
            attempt = state.attempts.get(group)
            if (
                attempt is not None
                and (token := f"{state.record(group).offer(state.job.id, group)}/{attempt.claimant}") in seen
            ):
                stacks[group] = seen[token]
        return stacks

    def versions(self, job: str) -> dict[str, str]:
        """The minor versions of Python and Spark of the job's first claims, by name."""
        return cast(dict[str, str], self._redis.hgetall(self._keys.of(job).versions))

    def counters(self) -> dict[str, int]:
        """How many reports were APPLIED, DUPLICATE, STALE, …"""
        return {name: int(n) for name, n in cast(dict[str, str], self._redis.hgetall(self._keys.counters)).items()}


def _event(entry: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """An event as it is stored; one that is damaged hides no other."""
    try:
        event = dict(json.loads(fields["event"]))
        float(event["at"]), str(event["kind"])
        return event
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        at = int(entry.partition("-")[0]) / 1000
        text = f"the stored event {entry} cannot be read ({type(error).__name__}: {error})"
        return {"kind": "EVENT_UNREADABLE", "at": at, "text": text}


def view_of(state: JobState, at: float, due: float | None, explained: Sequence[Explanation] = ()) -> JobView:
    """A job as people see it, with what explains it."""
    # Without a state it only counts members that are not explained.
    why = {one.subject: one for one in explained if one.state}
    groups = tuple(_fork_view(state, name) for name in state.plan.groups)
    inputs = (one for planned in state.plan.groups.values() for one in planned.spec.inputs.values())
    reads = sorted({one.dataset for one in inputs if isinstance(one, DatasetInput)})
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
        tuple(_group_view(state, name, member) for member in state.members(name) if member in state.groups),
        planned.spec.is_join,
    )


def _group_view(state: JobState, name: str, member: str) -> GroupView:
    _, ordinal = split_member(member)
    value = None if ordinal is None else state.plan.member_value(name, ordinal, state.collected)
    names = state.plan.groups[name].spec.fork_params
    shown = dict(zip(names, value, strict=True)) if isinstance(value, tuple) else value
    return GroupView.of(member, state.groups[member], state.attempts.get(member), shown)


_LISTED: TypeAdapter[ListedJob] = TypeAdapter(ListedJob)


def read_line(text: str) -> ListedJob:
    """The line of a job, as it is stored."""
    # Not pydantic's own JSON, which refuses half of a surrogate pair.
    return _LISTED.validate_python(json.loads(text))
