"""Conditions in deciding: when they are asked, what follows for the group, for those after it, and
for the job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs.job_in_memory import Job, failure, group
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Environment
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder

S = GroupState
TRUE, FALSE, FAILS = "results.a.n == 1", "results.a.n > 1", "results.a.nothing > 1"


def recorded(*groups: dict[str, Any], n: int = 1, **spec: Any) -> Job:
    """A job whose first group, ``a``, has succeeded and recorded ``n``."""
    job = Job(group("a"), *groups, **spec)
    job.decide()
    job.run("a", results={"n": n})
    return job


def reloaded(job: Job) -> JobState:
    """The job as another coordinator loads it: through what is stored."""
    state = job.state
    return JobState(
        job.plan,
        state.job,
        {name: GroupRecord.from_json(record.to_json()) for name, record in state.groups.items()},
        state.collected,
        dict(state.attempts),
        state.frozen,
    )


def why(job: Job) -> dict[str, str]:
    return {
        one.subject: one.what
        for one in explain(job.state, Environment(now=job.now, nonce="n"), None)
    }


# ---- one group
# -------------------------------------------------------------------------------------------------------


def test_a_true_condition_lets_the_group_run() -> None:
    job = recorded(group("b", "a", when=TRUE))
    assert job.record("b").state is S.QUEUED
    assert job.run("b").publish


def test_a_false_condition_skips_the_group_and_shows_its_values() -> None:
    job = recorded(group("b", "a", when="results.a.n > 1 and params.full"), params={"full": True})
    assert job.record("b").state is S.SKIPPED
    assert job.reason("b").code == "CONDITION_FALSE"
    assert job.reason("b").text == (
        "its condition is false: `results.a.n > 1 and params.full`, with results.a.n = 1, "
        "params.full = true"
    )
    assert job.state.job.phase == "publishing", "a group that was skipped is no failure of the job"


def test_a_condition_that_cannot_be_evaluated_fails_the_group_permanently() -> None:
    job = recorded(group("b", "a", when=FAILS, retry={"max": 5}))
    assert (job.record("b").state, job.record("b").epoch) == (S.FAILED, 0)
    assert job.reason("b").code == "WHEN_FAILED"
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert job.state.job.reason.text == (
        "group b failed: its condition cannot be evaluated, and is not tried again: "
        "none > 1 cannot be compared; ask whether it is none first; "
        "`results.a.nothing > 1`, with results.a.nothing = none (group a did not record it)"
    )


def test_a_condition_is_evaluated_only_after_the_join_is_satisfied() -> None:
    job = Job(
        group("a"), group("b"), group("c", "a", "b", when=FALSE), group("d", "a", "b", when=FAILS)
    )
    job.decide()
    job.run("a", results={"n": 1})
    assert set(job.states()) == {"a", "b"}
    assert why(job)["c"] == (
        "all_succeeded: 1 of 2 not done; waits for b (QUEUED); then its condition decides: "
        f"`{FALSE}`"
    )
    job.run("b")
    assert [job.reason(name).code for name in "cd"] == ["CONDITION_FALSE", "WHEN_FAILED"]


def test_a_group_skipped_by_its_condition_is_explained_while_the_job_runs() -> None:
    job = recorded(group("b", "a", when=FALSE), group("long", "a"))
    assert why(job)["b"] == f"its condition is false: `{FALSE}`, with results.a.n = 1"


def test_group_parameters_override_job_parameters() -> None:
    when = "params.x == 2 and params.y == 1"
    job = Job(
        group("a", when=when, params={"x": 2}), group("b", when=when), params={"x": 1, "y": 1}
    )
    job.decide()
    assert job.states() == {"a": "QUEUED", "b": "SKIPPED"}


def test_a_condition_is_not_part_of_the_fingerprint() -> None:
    prints = set()
    for when in (TRUE, FALSE, None):
        more = {"when": when} if when else {}
        plans = Job(group("a"), group("b", "a", **more)).plan.group_plans("/w", None)
        order = WorkOrder(plan=GroupPlan.model_validate_json(plans["b"]), frozen=FrozenInputs())
        prints.add(order.fingerprint)
    assert len(prints) == 1


# ---- what comes after
# ------------------------------------------------------------------------------------------------

# What becomes of a group after one that was skipped, or that failed, by its own join, where a
# sibling succeeded.
AFTER = {
    "all_succeeded": ("UPSTREAM_SKIPPED", "UPSTREAM_FAILED"),
    "none_failed": ("", "UPSTREAM_FAILED"),
    "all_done": ("", ""),
    "any_succeeded": ("", ""),
    "at_least": ("JOIN_IMPOSSIBLE", "JOIN_IMPOSSIBLE"),
}


@pytest.mark.parametrize("rule", AFTER)
@pytest.mark.parametrize("when", [TRUE, FALSE, FAILS])
def test_successors_of_a_skipped_group_decide_by_their_join(rule: str, when: str) -> None:
    join: Any = {"at_least": 2} if rule == "at_least" else rule
    job = recorded(
        group("b", "a", when=when),
        group("c", "a"),
        group("d", "b", "c", join=join),
        on_failure="finish_others",
    )
    if when == TRUE:
        job.run("b")
    job.run("c")
    expected = "" if when == TRUE else AFTER[rule][when == FAILS]
    if expected:
        assert job.reason("d").code == expected
    else:
        assert job.record("d").state is S.QUEUED
        job.run("d")
    lives = rule in ("all_done", "any_succeeded")
    failed = expected == "JOIN_IMPOSSIBLE" or (when == FAILS and not lives)
    assert (job.status() is Status.FAILED) == failed
    assert (job.state.job.phase == "publishing") == (not failed)


@pytest.mark.parametrize(
    "rule", ["all_succeeded", "none_failed", "all_done", "any_succeeded", {"at_least": 1}]
)
@pytest.mark.parametrize(
    ("when", "state"), [(TRUE, S.QUEUED), (FALSE, S.SKIPPED), (FAILS, S.FAILED)]
)
def test_the_condition_of_a_group_applies_with_every_join_rule(
    rule: Any, when: str, state: GroupState
) -> None:
    job = recorded(group("b", "a", join=rule, when=when))
    assert job.record("b").state is state


@pytest.mark.parametrize(
    ("when", "state"), [(TRUE, S.SUCCEEDED), (FALSE, S.SKIPPED), (FAILS, S.FAILED)]
)
def test_a_join_without_steps_may_have_a_condition(when: str, state: GroupState) -> None:
    job = recorded(group("j", "a", steps=[], when=when), group("after", "j"))
    assert job.record("j").state is state
    assert (job.record("after").state is S.QUEUED) == (state is S.SUCCEEDED)


def test_a_diamond_with_one_skipped_side_continues() -> None:
    job = recorded(
        group("left", "a", when=FALSE),
        group("right", "a", when=TRUE),
        group("strict", "left", "right"),
        group(
            "end",
            "left",
            "right",
            join="none_failed",
            when="results.left.n is none and results.right.n == 2",
        ),
    )
    job.run("right", results={"n": 2})
    assert job.states() == {
        "a": "SUCCEEDED",
        "end": "QUEUED",
        "left": "SKIPPED",
        "right": "SUCCEEDED",
        "strict": "SKIPPED",
    }
    assert job.run("end").publish


def test_a_failing_condition_cancels_other_groups_unless_tolerated() -> None:
    job = recorded(group("b", "a", when=FAILS), group("long", "a"))
    assert job.record("long").state is S.CANCELED
    assert job.status() is Status.FAILED
    for lived in (
        [group("b", "a", when=FAILS, optional=True), group("long", "a")],
        [group("b", "a", when=FAILS), group("long", "a"), group("c", "b", "long", join="all_done")],
    ):
        job = recorded(*lived)
        assert (job.record("b").state, job.record("long").state) == (S.FAILED, S.QUEUED)


def test_a_group_that_did_not_succeed_has_no_results() -> None:
    job = Job(
        group("a", retry={"max": 0}),
        group("b", "a", join="all_done", when="results.a.n is none"),
        group("c", "a", join="all_done", when="results.a.n == 1"),
    )
    job.decide()
    job.run("a", failure())
    assert job.states() == {"a": "FAILED", "b": "QUEUED", "c": "SKIPPED"}
    assert job.reason("c").text.endswith("results.a.n = none (group a did not succeed)")


# ---- forks
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, 2, 3], {"from": "a.n"}])
@pytest.mark.parametrize(
    ("when", "state"), [(TRUE, S.QUEUED), (FALSE, S.SKIPPED), (FAILS, S.FAILED)]
)
def test_a_condition_of_a_fork_is_evaluated_before_its_expansion(
    values: Any, when: str, state: GroupState
) -> None:
    job = Job(
        group("a"),
        group("f", "a", for_each={"n": values}, when=when),
        group("after", "f", join="all_done"),
    )
    job.decide()
    job.run("a", results={"n": 1}, forks={"a.n": [1, 2, 3]})
    members = {"f[0]", "f[1]", "f[2]"} if state is S.QUEUED else {"f"}
    assert {name for name in job.states() if name[0] == "f"} == members
    assert all(job.record(name).state is state for name in members)
    if state is S.QUEUED:
        for name in members:
            job.run(name)
    job.run("after")
    assert job.state.job.phase == "publishing"
    assert reloaded(job).open_groups == job.state.open_groups == 0


def test_a_fork_with_pending_values_waits_with_its_condition() -> None:
    """any_succeeded holds with the other need; what the maker records is still to come."""
    fork = group(
        "f",
        "a",
        "b",
        join="any_succeeded",
        for_each={"n": {"from": "a.n"}},
        when="results.a.n == 1",
    )
    job = Job(group("a"), group("b"), fork)
    job.decide()
    job.run("b")
    assert "f" not in job.states()
    decision = job.run("a", results={"n": 1}, forks={"a.n": [5]})
    assert job.record("f[0]").state is S.QUEUED
    assert FrozenInputs.model_validate_json(decision.frozen["f"]).inputs["a"] == ("_staging/j/a/1",)


def test_a_false_condition_takes_precedence_over_an_empty_fork() -> None:
    job = recorded(
        group("empty", "a", for_each={"n": []}, when=FALSE),
        group("lost", "a", for_each={"n": {"from": "a.other"}}, when=FALSE),
    )
    assert {job.reason(name).code for name in ("empty", "lost")} == {"CONDITION_FALSE"}


# ---- once
# ------------------------------------------------------------------------------------------------------------

FIRST = "results.b.n is none"  # true as long as only a has ended


def test_a_true_condition_is_not_evaluated_again() -> None:
    """While c waits for room, b records what would make its condition false.

    c goes, and reads what it was asked by.
    """
    job = Job(
        group("a"),
        group("b"),
        group("c", "a", "b", join="any_succeeded", when=FIRST),
        max_parallel=1,
    )
    job.decide()
    decision = job.run("a")
    assert job.states() == {"a": "SUCCEEDED", "b": "QUEUED"}
    assert FrozenInputs.model_validate_json(decision.frozen["c"]).inputs == {
        "a": ("_staging/j/a/1",),
        "b": (),
    }
    job.state = reloaded(job)
    assert "c" not in job.run("b", results={"n": 1}).frozen
    assert job.record("c").state is S.QUEUED


def test_a_partly_queued_fork_continues_despite_later_results() -> None:
    fork = group("f", "a", "b", join="any_succeeded", when=FIRST, for_each={"n": [1, 2, 3]})
    job = Job(group("a"), group("b"), fork, max_parallel=2)
    job.decide()
    job.run("a")
    assert job.states() == {"a": "SUCCEEDED", "b": "QUEUED", "f[0]": "QUEUED"}
    job.state = reloaded(job)
    job.run("b", results={"n": 1})
    for ordinal in range(3):
        job.run(f"f[{ordinal}]")
    assert job.state.job.phase == "publishing"
    assert job.count(S.SUCCEEDED) == 5


def test_a_group_returned_by_a_pause_continues_after_the_resume() -> None:
    job = Job(group("a"), group("b"), group("c", "a", "b", join="any_succeeded", when=FIRST))
    job.decide()
    job.claim("b")
    job.decide()
    job.run("a")
    job.state.job = replace(job.state.job, intent=Intent.PAUSE)
    job.decide()
    assert job.record("c").state is S.WAITING
    job.run("b", results={"n": 1})
    job.state = reloaded(job)
    job.state.job = replace(job.state.job, intent=Intent.RUN)
    job.decide()
    assert job.record("c").state is S.QUEUED


def test_conditions_respect_the_limit_of_500_per_commit_and_all_are_evaluated() -> None:
    waiting = [group(f"g{i}", "a", when=TRUE if i % 2 else FALSE) for i in range(1200)]
    job = Job(group("a"), *waiting)
    job.decide()
    decision = job.run("a", results={"n": 1})
    moves = [decision.moves]
    asked = len(decision.frozen)
    while decision.more:
        job.state = reloaded(job)
        decision = job.decide(dispatch_window=10_000)
        moves.append(decision.moves)
        asked += len(decision.frozen)
        assert len(moves) < 10, "every commit gets further"
    assert max(moves) <= MAX_TRANSITIONS
    assert (job.count(S.SKIPPED), job.count(S.QUEUED), asked) == (600, 600, 600)


WHENS = [
    "results.a.n > 1",
    "results.a.n is none or results.b.n == 2",
    "results.b.n > results.a.n",
    "not results.a.ok",
    "params.x in [results.a.n, results.b.n]",
]
RULES = ["all_succeeded", "none_failed", "all_done", "any_succeeded", "at_least"]


@given(
    st.lists(st.sampled_from(WHENS), min_size=4, max_size=4),
    st.lists(st.sampled_from(RULES), min_size=3, max_size=3),
    st.lists(st.integers(0, 20), max_size=30),
    st.lists(
        st.sampled_from([{}, {"n": 1}, {"n": 2, "ok": True}, {"n": "x", "ok": 1}]),
        min_size=2,
        max_size=2,
    ),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_condition_gives_the_same_result_after_a_reload(
    whens: list[str],
    rules: list[str],
    picks: list[int],
    results: list[dict[str, Any]],
    parallel: int,
    strict: bool,
) -> None:
    joins: list[Any] = [{"at_least": 1} if rule == "at_least" else rule for rule in rules]
    groups = [
        group("a", retry={"max": 0}),
        group("b"),
        group("c", "a", "b", join=joins[0], when=whens[0]),
        group("f", "a", "b", join=joins[1], when=whens[1], for_each={"n": [1, 2]}),
        group("j", "c", "f", join=joins[2], when=whens[2], steps=[]),
        group("d", "j", join="all_done", when=whens[3]),
    ]
    more = {
        "max_parallel": parallel,
        "params": {"x": 2},
        "on_failure": "cancel_others" if strict else "finish_others",
    }
    kept, loaded = Job(*groups, **more), Job(*groups, **more)
    reported = dict(zip("ab", results, strict=True))
    kept.decide()
    loaded.decide()
    for pick in picks:
        loaded.state = reloaded(loaded)
        loaded.decide()
        open_groups = sorted(kept.state.by_state[S.QUEUED])
        if not open_groups:
            break
        name = open_groups[pick % len(open_groups)]
        outcome = failure() if name == "a" and pick % 3 == 0 else None
        for job in (kept, loaded):
            job.run(name, outcome, results=reported.get(name, {}))
        assert kept.states() == loaded.states()
        assert {n: r.reason for n, r in kept.state.groups.items()} == {
            n: r.reason for n, r in loaded.state.groups.items()
        }
        assert kept.state.frozen == loaded.state.frozen
