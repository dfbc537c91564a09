"""The state of a job in a coordinator's memory: its records, and indexes of them.

The indexes are rebuilt from the records at every load and updated with each change, so a report
costs the same in a job of any width. ``decide`` moves a state forward; a state whose commit was
refused is thrown away and loaded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, compact
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.job_params import values_of
from unstuck.coordinator.spec.plan import Plan, PlannedGroup
from unstuck.tasks.protocol.token import fork_member, split_member
from unstuck.tasks.spec.fields import Scalar
from unstuck.tasks.spec.group import fork_bytes

WAITING_RECORD = GroupRecord()
# In a census: a need that is a dynamic fork without values yet.
UNEXPANDED = "UNEXPANDED"

Census = Counter[str]  # number of groups by state


class JobState:
    """One job as loaded, with indexes.

    Attributes:
        damage: which part could not be read, and what to do about it; empty if all could. A damaged
            job has no groups here, and only the readable fields of its record.
    """

    damage = ""
    # Of how many groups the store has what runners get; None: it was not asked.
    plans: int | None = None

    def __init__(
        self,
        plan: Plan,
        job: JobRecord,
        groups: dict[str, GroupRecord],
        collected: dict[str, tuple[Scalar, ...]],
        attempts: dict[str, AttemptRecord],
        frozen: Iterable[str] = (),
    ) -> None:
        self.plan = plan
        self.job = job
        self.groups: dict[str, GroupRecord] = {}
        self.collected = dict(collected)
        self.attempts = attempts
        self.frozen = set(frozen)  # groups and members whose inputs have been fixed
        # By planned group, without groups that have no record.
        self.census: dict[str, Census] = {name: Counter() for name in plan.groups}
        self.by_state: dict[GroupState, dict[str, None]] = {state: {} for state in GroupState}
        self.recovering: dict[str, None] = {}
        self.fatal: dict[str, None] = {}  # failed for good, and nothing after them lives with it
        # per queue: groups that may go, with unqueued members
        self.runnable: dict[str, dict[str, None]] = {}
        self.joins_judged = False  # ``runnable`` holds all that may go
        self.needs: dict[str, Census] = {}  # per planned group: the states of all it needs
        # per planned group: members counted into its successors' needs
        self.fulls: dict[str, int | None] = {}
        self.open_groups = 0  # planned groups that are not done
        self.outliving = 0  # those of them that run although the job fails fast
        # Members in all; a fork that is not expanded, or that ended as a whole, counts as one.
        self.size = 0
        self.unexpanded = 0  # dynamic forks without values yet
        # Kept by the reconciler, by the clock of Redis: when everything was last looked at, and
        # when it is to be next.
        self.looked_at, self.look_at = 0.0, 0.0
        for name in plan.groups:
            full = self.fulls[name] = plan.member_count(name, self.collected)
            self.size += full or 1
            self.unexpanded += full is None
        for name in plan.groups:
            self.needs[name] = Counter()
            for need in plan.groups[name].spec.needs:
                self.needs[name].update(self._unbegun(need))
        still_open = [name for name in plan.groups if not self.done(name)]
        self.open_groups = len(still_open)
        self.outliving = sum(plan.groups[name].spec.join.outlives_failure for name in still_open)
        for group_id, record in groups.items():
            self.put(group_id, record)

    # ---- reading
    # -------------------------------------------------------------------------------------

    def record(self, group_id: str) -> GroupRecord:
        return self.groups.get(group_id, WAITING_RECORD)

    def planned(self, group_id: str) -> PlannedGroup:
        """Return the planned group of a group or of a fork's member."""
        return self.plan.groups[split_member(group_id)[0]]

    def ended_whole(self, name: str) -> bool:
        """Return whether a fork ended as a whole, before it was expanded."""
        return self.plan.groups[name].spec.for_each is not None and name in self.groups

    def members(self, name: str) -> Iterator[str]:
        """Yield the ids of the group's members; its own name if it is not a fork, or not expanded.

        A fork that ended as a whole is yielded by its own name, too.
        """
        count = self.plan.member_count(name, self.collected)
        if self.plan.groups[name].spec.for_each is None or count is None or self.ended_whole(name):
            yield name
        else:
            for ordinal in range(count):
                yield fork_member(name, ordinal)

    def done(self, name: str) -> bool:
        """Return whether every member has ended. A fork that is not expanded is never done."""
        if self.ended_whole(name):
            return self.groups[name].state.terminal
        count = self.plan.member_count(name, self.collected)
        ended = sum(n for state, n in self.census[name].items() if GroupState(state).terminal)
        return bool(count) and ended == count

    @property
    def without_outputs(self) -> bool:
        """Whether all groups SUCCEEDED without an output, so that the log need not be read.

        This is false for a job that was altered, or of which a group ran again, was skipped or
        failed. It may have published before the store was rolled back. Only the log knows.
        """
        if self.plan.publish or self.plan.outputs or self.job.alterations or self.job.reruns:
            return False
        return all(
            record.state is GroupState.SUCCEEDED and not record.rows
            for record in self.groups.values()
        )

    @property
    def first_failed(self) -> str:
        """The group that failed for good first."""
        return min(self.fatal, key=lambda group_id: self.groups[group_id].since)

    @property
    def active(self) -> list[str]:
        """Groups whose attempt is offered, running or being canceled."""
        states = (GroupState.QUEUED, GroupState.RUNNING, GroupState.CANCELING)
        return [group_id for state in states for group_id in self.by_state[state]]

    @property
    def counts(self) -> dict[str, Any]:
        """The fields about groups and parameters in a list of jobs."""
        return {
            "states": {state: len(groups) for state, groups in self.by_state.items() if groups},
            "total": None if self.unexpanded else self.size,
            "params_text": self.plan.params_told,
        }

    @property
    def params(self) -> dict[str, Any]:
        """The parameters with their values; empty for a damaged job."""
        return {} if self.damage else values_of(self.job.written().get("params", {}))

    @cached_property
    def collected_bytes(self) -> int:
        """The bytes of the values of all dynamic forks on the record."""
        return sum(map(fork_bytes, self.collected.values()))

    # ---- changing
    # ------------------------------------------------------------------------------------

    def collect(self, fork: str, values: tuple[Scalar, ...]) -> None:
        """Set the values of a dynamic fork: successors now wait for its members.

        The first values stay; later ones change nothing.
        """
        if fork in self.collected:
            return
        self.collected_bytes = self.collected_bytes + fork_bytes(values)
        self.collected[fork] = values
        count = self.fulls[fork] = len(values)
        if self.ended_whole(fork):
            return
        self.unexpanded -= 1
        if not count:
            return  # an empty fork stays unexpanded to others until it has been skipped as a whole
        self.size += count - 1
        for successor in self.plan.groups[fork].successors:
            self.needs[successor][UNEXPANDED] -= 1
            self.needs[successor][GroupState.WAITING] += count

    def put(self, group_id: str, record: GroupRecord) -> None:
        """Set one record and update every index."""
        name, _ = split_member(group_id)
        planned, old = self.plan.groups[name], self.groups.get(group_id)
        was_done = self.done(name)
        before: Census = Counter({GroupState.WAITING if old is None else old.state: 1})
        if old is not None:
            self.census[name][old.state] -= 1
            del self.by_state[old.state][group_id]
            self.recovering.pop(group_id, None)
            self.fatal.pop(group_id, None)
        elif group_id == name and planned.spec.for_each is not None:
            # The fork ends as one: what was counted for its members, or for its being unexpanded,
            # goes.
            before = self._unbegun(name)
            self.unexpanded -= self.fulls[name] is None
            self.size -= (self.fulls[name] or 1) - 1
        self.groups[group_id] = record
        self.census[name][record.state] += 1
        self.by_state[record.state][group_id] = None
        if record.recovering:
            self.recovering[group_id] = None
        if record.state is GroupState.FAILED and not planned.absorbed:
            self.fatal[group_id] = None
        for successor in planned.successors:
            self.needs[successor].subtract(before)
            self.needs[successor][record.state] += 1
        ended = self.done(name) - was_done
        self.open_groups -= ended
        self.outliving -= ended * planned.spec.join.outlives_failure

    def _unbegun(self, name: str) -> Census:
        """Return the count of a group without a record, for the groups that need it."""
        full = self.fulls[name]
        return Counter({GroupState.WAITING: full} if full else {UNEXPANDED: 1})


def summary_of(state: JobState) -> str:
    """Return the summary of a job for lists, as one line of JSON."""
    return compact({**state.job.summary(), **state.counts})
