"""Histories under a seed keep every promise; bugs put in on purpose break one; a seed is a history."""

from __future__ import annotations

import pytest

from .__main__ import explained
from .history import simulate
from .planted import PLANTED, Planted

SEEDS = 60  # CI runs 500 by `make simulate`


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_promise_is_kept_whatever_is_lost_killed_or_frozen(first: int) -> None:
    broken = [history for seed in range(first, first + 20) if not (history := simulate(seed)).kept]
    assert not broken, "\n".join(explained(history) for history in broken)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_bug_put_in_on_purpose_is_found(bug: Planted) -> None:
    found = bug.search()
    assert found is not None, f"{bug.name!r} broke no promise in {bug.within} seeds"
    said = explained(found)
    assert found.promise in said
    assert f"--trace {found.seed}" in said


def test_the_same_seed_is_the_same_history() -> None:
    once, again = simulate(7, keep_all=True), simulate(7, keep_all=True)
    assert len(once.trace) > 20
    assert once.trace == again.trace


def test_histories_reach_every_way_a_job_can_end() -> None:
    """Without it, a spec generator that only made trivial jobs would keep every promise too."""
    left = {"FINISHED", "FAILED", "CANCELED", "STOPPED", "→SKIPPED", "→BACKOFF", "→CANCELED", "→CANCELING", "→WAITING"}
    left |= {"DIES", "FREEZES", "CONFLICT", "STALE", "lost: APPLIED", "loses", "is DEAF", "KILLS the runner", "HELD"}
    left |= {
        "released: APPLIED",
        "canceled: APPLIED",
        "ALREADY",
        "REFUSED",
        "shell is KILLED",
        "abort of",
        "package of",
    }
    left |= {
        "CONDITION_FALSE",
        "WHEN_FAILED",
        "QUEUE_TIMEOUT",
        "→JOB_TIMEOUT",
        "SKIPPED USER_SKIPPED",
        "BACKOFF ALTERED",
    }
    left |= {"WAITING USER_RERUN", "(RETRYING): APPLIED", "(PAUSED): APPLIED", "WRONG"}
    for seed in range(200):
        history = simulate(seed, keep_all=True)
        said = "\n".join([*history.trace, *history.statuses.values()])
        left = {seen for seen in left if seen not in said}
        if not left:
            return
    assert not left, f"no history showed {left}"
