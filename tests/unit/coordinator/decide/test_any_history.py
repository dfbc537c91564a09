"""Any history at all: whatever users, runners, the warehouse and the clock do, in any order, the
promise is kept.

``UNSTUCK_TEST_HISTORIES=20000 python -m pytest tests/unit/coordinator/decide/test_any_history.py``
runs more of them.
"""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.jobs.invariants import judge_words
from tests.support.jobs.sample_jobs import SPECS
from tests.support.jobs.state_space import SmallWorld
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.model.status import Status

HISTORIES = int(os.environ.get("UNSTUCK_TEST_HISTORIES", "150"))
# What happens more often than its share of all possible steps, so that jobs get somewhere between
# commands.
WORK = ["look", "claim", "finish", "warehouse"]
RARER = [
    "look",
    "wait",
    "wait",
    "lapse",
    "command",
    "command",
    "skip",
    "rerun",
    "alter",
    "halt",
    "lose",
    "drop",
]
KINDS = [*WORK, *WORK, *WORK, *RARER]
# A history that breaks the promise is made short before it is shown, which takes its time.
pytestmark = pytest.mark.timeout(600)
# A kind of step, and which of those that can happen now; of which there is none, nothing happens.
HISTORY = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), min_size=25, max_size=60)


def tell(world: SmallWorld, history: list[tuple[str, int]]) -> None:
    """Let it happen, and look after every step."""
    for kind, number in history:
        steps = [step for step in world.steps() if step.do == kind]
        if not steps:
            continue
        before, step = world.job, steps[number % len(steps)]
        world.play(step)
        if before.terminal:
            assert world.job == before, f"what had ended has changed: {world}"
        if kind != "command":
            assert world.job.intent is before.intent, (
                f"nobody but the user writes the intent: {world}"
            )
        read_attempt(world)


def read_attempt(world: SmallWorld) -> None:
    """It is due, or has ended for good; and everything that is not done is explained."""
    state, asked = world.state(), world.env()
    judge_words(state, asked, None if world.job.terminal else world.due)
    if world.job.terminal:
        assert not world.attempts, f"{world}"
        assert decide(state, None, asked).empty, f"{world}"
    else:
        assert math.isfinite(world.due), f"nobody will look at it again: {world}"


def run_well(world: SmallWorld) -> None:
    """Left alone with runners that succeed, and resumed whenever it waits for a person, it ends."""
    for _ in range(3):
        if world.go_on().job.terminal:
            break
        world.give("resume")
    assert world.job.terminal, f"{world}"
    if world.job.status is Status.FINISHED:
        assert world.slot == "package" or (not world.slot and world.state().without_outputs), (
            f"{world}"
        )
    else:
        assert world.slot != "package", f"{world}"
    read_attempt(world)


@pytest.mark.variant
@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=HISTORIES // 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=HISTORY)
def test_in_any_history_promises_are_kept_and_the_job_can_end(
    spec: str, history: list[tuple[str, int]]
) -> None:
    world = SmallWorld(spec)
    tell(world, history)
    run_well(world)


@pytest.mark.variant
@settings(max_examples=HISTORIES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=st.sampled_from(sorted(SPECS)), history=HISTORY, limit=st.integers(3, 5))
def test_promises_are_kept_between_the_commits_of_a_large_job(
    spec: str, history: list[tuple[str, int]], limit: int
) -> None:
    """With room for a few moves in one commit, small jobs meet what otherwise only those of
    thousands of groups do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unstuck.coordinator.model.decision.MAX_TRANSITIONS", limit)
        patch.setattr("unstuck.coordinator.decide.live_attempts.MAX_TRANSITIONS", limit)
        world = SmallWorld(spec, limit=limit)
        tell(world, history)
        run_well(world)
