"""The indexes of a state are a function of its records, after any sequence of changes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs.job_in_memory import Job, group
from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.state import UNEXPANDED, JobState
from unstuck.coordinator.model.status import GROUP_MOVES, GroupState
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, compile_plan
from unstuck.tasks.protocol.token import fork_member

S = GroupState
GROUPS = [
    group("a"),
    group("two", "a", for_each={"n": [1, 2]}),
    group("none", "a", for_each={"n": []}),
    group("dynamic", "a", for_each={"n": {"from": "a.n"}}),
    group("tolerant", "two", "dynamic", join="all_done"),
    group("last", "none", "dynamic", "tolerant", steps=[], join="none_failed"),
]
PLAN = compile_plan(JobSpec.model_validate({"name": "all", "groups": GROUPS}))
MOVES = [state for state in S if state is not S.WAITING]


def indexes(state: JobState) -> object:
    """Everything that is derived."""
    return (
        state.census,
        {name: set(groups) for name, groups in state.by_state.items()},
        set(state.recovering),
        set(state.fatal),
        state.needs,
        state.fulls,
        (state.open_groups, state.outliving),
        (state.size, state.unexpanded),
        {name: state.done(name) for name in state.plan.groups},
    )


def rebuilt(state: JobState) -> JobState:
    return JobState(
        state.plan, state.job, state.groups, state.collected, state.attempts, state.frozen
    )


def fresh(plan: Plan = PLAN) -> JobState:
    return JobState(plan, JobRecord("j", "all", "", "new"), {}, {}, {})


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(MOVES), st.integers(0, 2)), max_size=40)
)
def test_indexes_equal_a_rebuild_after_any_sequence_of_changes(
    changes: Sequence[tuple[int, GroupState, int]],
) -> None:
    state = fresh()
    for what, to, number in changes:
        if what == 8:
            state.collect("dynamic", tuple(range(number)))
        else:
            _move(state, list(PLAN.groups)[what % len(PLAN.groups)], to, number)
        assert indexes(state) == indexes(rebuilt(state))


def _move(state: JobState, name: str, to: GroupState, number: int) -> None:
    """One legal change of a group, of one of its members, or of a fork that ends as a whole."""
    group_id, spec = name, PLAN.groups[name].spec
    if spec.for_each is not None and not state.ended_whole(name):
        count = PLAN.member_count(name, state.collected)
        begun = any(fork_member(name, ordinal) in state.groups for ordinal in range(count or 0))
        if begun or (count and number < count and not to.terminal):
            group_id = fork_member(name, number % (count or 1))
        elif not to.terminal:
            return  # only an end is recorded of a fork as a whole
    if (state.record(group_id).state, to) in GROUP_MOVES:
        state.put(group_id, GroupRecord(state=to, failures=number, losses=number // 2))


def test_a_second_collection_of_fork_values_is_ignored() -> None:
    state = fresh()
    state.collect("dynamic", (1, 2, 3))
    state.collect("dynamic", (4,))
    assert state.collected["dynamic"] == (1, 2, 3)
    assert +state.needs["tolerant"] == {S.WAITING: 5}


def test_a_fork_is_not_done_before_its_expansion_or_when_empty() -> None:
    state = fresh()
    assert (
        state.needs["last"][UNEXPANDED] == 2
    )  # the dynamic one, and the empty one until it is skipped
    state.collect("dynamic", ())
    assert not state.done("dynamic")
    state.put("dynamic", GroupRecord(state=S.SKIPPED))
    assert state.done("dynamic")
    assert +state.needs["tolerant"] == {S.WAITING: 2, S.SKIPPED: 1}


def test_a_failure_tolerated_by_every_successor_is_not_fatal() -> None:
    state = fresh()
    state.put("two[0]", GroupRecord(state=S.FAILED))
    assert not state.fatal
    state.put("tolerant", GroupRecord(state=S.FAILED))
    assert list(state.fatal) == ["tolerant"]


def test_the_number_of_open_groups_is_zero_exactly_when_all_are_done() -> None:
    job = Job(group("a"), group("b", "a", steps=[]))
    assert job.state.open_groups == 2
    job.state.put("a", GroupRecord(state=S.SUCCEEDED))
    job.state.put("b", GroupRecord(state=S.SUCCEEDED))
    assert job.state.open_groups == 0
