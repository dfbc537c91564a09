"""The states that a coordinator keeps between two passes: bounded by groups, and never shared by two passes."""

from __future__ import annotations

import pytest

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.reconcile.state_cache import StateCache
from unstuck.coordinator.spec.plan import plan_of


def state(groups: int) -> JobState:
    names = ",".join(f'{{"name":"g{n}","steps":[{{"python":"m:f"}}]}}' for n in range(groups))
    spec = f'{{"name":"j","groups":[{names}]}}'
    return JobState(plan_of(spec), JobRecord("id", "j", spec, "c"), {}, {}, {})


def test_a_state_that_was_taken_is_no_longer_there() -> None:
    cache, one = StateCache(), state(1)
    cache.keep("a", one)
    assert cache.look("a") is one
    assert cache.take("a") is one
    assert cache.take("a") is None
    assert cache.look("a") is None


def test_the_least_recently_used_leave_when_there_are_too_many_groups() -> None:
    cache = StateCache(max_groups=10)
    for job in "abc":
        cache.keep(job, state(3))
    cache.keep("a", cache.take("a") or state(1))
    # When
    cache.keep("d", state(3))
    # Then
    assert [job for job in "abcd" if cache.look(job)] == ["a", "c", "d"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_state_of_more_groups_than_that_is_kept_alone(times: int) -> None:
    cache = StateCache(max_groups=10)
    cache.keep("small", state(1))
    for _ in range(times):
        cache.keep("large", state(12))
    assert cache.look("small") is None
    assert cache.look("large") is not None
    cache.keep("small", state(1))
    assert cache.look("large") is None
    assert cache.look("small") is not None
