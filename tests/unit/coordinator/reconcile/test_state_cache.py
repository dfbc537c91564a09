"""The states that a coordinator keeps between two passes: bounded in groups and time, never shared by two."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.reconcile.state_cache import MAX_AGE, StateCache
from unstuck.coordinator.spec.plan import plan_of


def state(groups: int) -> JobState:
    names = ",".join(f'{{"name":"g{n}","steps":[{{"python":"m:f"}}]}}' for n in range(groups))
    spec = f'{{"name":"j","groups":[{names}]}}'
    return JobState(plan_of(spec), JobRecord("id", "j", spec, "c"), {}, {}, {})


def kept(cache: StateCache, jobs: Iterable[str]) -> str:
    return "".join(job for job in jobs if cache.look(job))


def test_a_state_that_was_taken_is_no_longer_there() -> None:
    cache, one = StateCache(), state(1)
    cache.keep("a", one, 0.0)
    assert cache.look("a") is one
    assert cache.take("a", 0.0) is one
    assert cache.take("a", 0.0) is None
    assert cache.look("a") is None


def test_those_not_used_for_longest_leave_when_there_are_too_many_groups() -> None:
    cache = StateCache(max_groups=10, always_kept=1)
    for job in "abc":
        cache.keep(job, state(3), 0.0)
    cache.keep("a", cache.take("a", 0.0) or state(1), 0.0)
    # When
    cache.keep("d", state(3), 0.0)
    # Then
    assert kept(cache, "abcd") == "acd"


def test_a_few_are_kept_however_many_groups_they_have() -> None:
    cache = StateCache(max_groups=10, always_kept=3)
    for job in "abcd":
        cache.keep(job, state(12), 0.0)
    assert kept(cache, "abcd") == "bcd"


def test_one_that_nobody_has_used_for_long_leaves_with_the_next_pass_over_any_job() -> None:
    cache = StateCache()
    cache.keep("ended", state(1), 100.0)
    cache.keep("busy", state(1), 100.0 + MAX_AGE - 1)
    assert kept(cache, ["ended", "busy"]) == "endedbusy"
    cache.keep("busy", state(1), 100.0 + MAX_AGE)
    assert kept(cache, ["ended", "busy"]) == "busy"


def test_one_that_was_loaded_long_ago_is_loaded_afresh() -> None:
    cache = StateCache()
    for now, found in ((99.0, False), (100.0, True), (100.0 + MAX_AGE - 1, True), (100.0 + MAX_AGE, False)):
        one = state(1)
        one.loaded_at = 100.0
        cache.keep("a", one, now)
        assert (cache.take("a", now) is one) is found
