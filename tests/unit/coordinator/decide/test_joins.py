"""Join rules: derived from the states as they stand, equal to their definitions, and never taken
back.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstuck.coordinator.decide.joins import JoinResult, judge
from unstuck.coordinator.model.state import UNEXPANDED
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.spec.join import JoinRule

S = GroupState
STATES = [str(state) for state in S]
ENDS = [str(state) for state in S if state.terminal]
rules = st.one_of(
    st.sampled_from(
        ["all_succeeded", "all_done", "any_succeeded", "none_failed", "any_failed", "all_failed"]
    ).map(JoinRule.model_validate),
    st.integers(1, 6).map(lambda n: JoinRule(rule="at_least", count=n)),
)
needs = st.lists(st.sampled_from([*STATES, UNEXPANDED]), min_size=1, max_size=8)


def by_definition(rule: JoinRule, states: list[str]) -> JoinResult:
    """The rules as the manual words them, with no thought of speed."""
    open_states = [s for s in states if s not in ENDS]
    if rule.rule == "all_done":
        return JoinResult.WAIT if open_states else JoinResult.GO
    if rule.rule == "any_failed":
        if open_states:
            return JoinResult.WAIT
        return JoinResult.GO if {"FAILED", "CANCELED"} & set(states) else JoinResult.SKIP
    if rule.rule == "all_failed":
        if {"SUCCEEDED", "SKIPPED"} & set(states):
            return JoinResult.SKIP
        return JoinResult.WAIT if open_states else JoinResult.GO
    if rule.rule in ("any_succeeded", "at_least"):
        wanted = rule.count if rule.rule == "at_least" else 1
        if states.count("SUCCEEDED") >= wanted:
            return JoinResult.GO
        # A fork that is not expanded may still bring any number of members.
        reachable = UNEXPANDED in states or states.count("SUCCEEDED") + len(open_states) >= wanted
        return JoinResult.WAIT if reachable else JoinResult.FAIL
    bad = {"FAILED", "CANCELED"} | ({"SKIPPED"} if rule.rule == "all_succeeded" else set())
    if bad & set(states):
        return JoinResult.SKIP
    return JoinResult.WAIT if open_states else JoinResult.GO


@given(rule=rules, states=needs)
def test_a_join_returns_the_result_of_its_rule(rule: JoinRule, states: list[str]) -> None:
    result, reason = judge(rule, Counter(states))
    assert result == by_definition(rule, states)
    assert reason.text


@given(rule=rules, states=needs, data=st.data())
def test_a_join_result_is_never_revoked_by_later_ends(
    rule: JoinRule, states: list[str], data: st.DataObject
) -> None:
    """A join may go as soon as it may; nothing that comes in later can make that wrong."""
    found, _ = judge(rule, Counter(states))
    later: list[str] = []
    for state in states:
        if state == UNEXPANDED:
            # An empty fork ends as one; another becomes its members.
            later += data.draw(st.lists(st.sampled_from(ENDS), min_size=1, max_size=4))
        else:
            later.append(state if state in ENDS else data.draw(st.sampled_from(ENDS)))
    final, _ = judge(rule, Counter(later))
    assert final is not JoinResult.WAIT, "everything has ended, and the join still waits"
    if found is not JoinResult.WAIT:
        assert final is found


@pytest.mark.parametrize("rule", ["all_succeeded", "all_done", "none_failed"])
def test_a_group_without_needs_can_run(rule: str) -> None:
    assert judge(JoinRule.model_validate(rule), Counter())[0] is JoinResult.GO
