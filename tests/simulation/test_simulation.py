"""Histories under a seed keep every promise; bugs put in on purpose break one; a seed is a history."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.simulation.__main__ import play, total
from tests.simulation.planted.mutants import MUTANTS
from tests.simulation.planted.planted import PLANTED, SYSTEMS
from tests.simulation.planted.planting import Planted
from tests.simulation.rules.broken import COSTS, FORGOTTEN, NOTICES, ONE, SHOWN, WAIT, WHOLE, WORD
from tests.simulation.stage.history import simulate
from tests.simulation.stage.shrink import explained, shrink

SEEDS = 60  # .ci/run plays 1,500: make simulate SEEDS=1500
FULL_OF_EVENTS = (9, 7, 163, 235, 151, 204, 295, 183)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_promise_is_kept_whatever_is_lost_killed_or_frozen(first: int) -> None:
    broken = [history for seed in range(first, first + 20) if not (history := simulate(seed)).kept]
    assert not broken, "\n".join(explained(history) for history in broken)


def test_every_promise_and_every_bound_of_a_wait_is_broken_by_some_bug() -> None:
    assert {bug.breaks for bug in PLANTED} == {FORGOTTEN, ONE, WORD, WAIT, SHOWN, WHOLE, *COSTS, *NOTICES}


def test_the_pages_count_the_planted_bugs() -> None:
    docs = Path(__file__).parents[2] / "docs"
    counted = f"{len(PLANTED)} bugs stand ready to be put in, one at a time: {len(SYSTEMS)} of the"
    assert counted in (docs / "guarantees.md").read_text()
    assert f"\n{len(MUTANTS)} of a single line" in (docs / "guarantees.md").read_text()
    assert f"{len(PLANTED)} bugs that were planted" in (docs / "simulation.md").read_text()


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_bug_put_in_on_purpose_is_found(bug: Planted) -> None:
    found = bug.search()
    assert found is not None, f"{bug.name!r} did not break {bug.breaks!r} in {bug.within} seeds"
    assert found.promise == bug.breaks
    assert simulate(found.seed, commands=bug.commands).kept, "the same history without the bug"
    said = explained(found)
    assert bug.breaks in said
    assert f"--trace {found.seed}" in said


def test_the_same_seed_is_the_same_history() -> None:
    once, again = simulate(7, keep_all=True), simulate(7, keep_all=True)
    assert len(once.trace) > 20
    assert once.trace == again.trace


def test_what_other_threads_draw_at_random_changes_no_history() -> None:
    """Threads of other tests that still ran once made two planted bugs hide."""
    once = simulate(7, keep_all=True)
    stopped = threading.Event()

    def draws() -> None:
        while not stopped.is_set():
            random.random()

    thread = threading.Thread(target=draws)
    thread.start()
    try:
        assert simulate(7, keep_all=True).trace == once.trace
    finally:
        stopped.set()
        thread.join()


def test_a_history_that_breaks_a_promise_is_made_short() -> None:
    """What is left breaks the same promise, with less in it, and the dead wood of the rest is gone from its trace."""
    bug = next(bug for bug in PLANTED if bug.name == "a late failure writes the intent")
    found = bug.search(51)  # with commands and faults that have nothing to do with it
    assert found is not None
    with bug.planted():
        whole = simulate(found.seed, store=bug.store, commands=bug.commands, keep_all=True)
        shrunk = shrink(found.seed, 40, store=bug.store, commands=bug.commands)
    assert shrunk is not None
    assert shrunk.result.promise == found.promise
    for what, (few, many) in shrunk.counts.items():
        assert few <= (many + 1) // 2, f"{few} of {many} {what} are left"
    assert len(shrunk.result.trace) < len(whole.trace)
    assert f"--shrink {found.seed}" in shrunk.explained()
    assert shrink(found.seed, 1, commands=bug.commands) is None, "without the bug every promise is kept"


def test_many_processes_play_the_same_histories_as_one() -> None:
    assert total(list(play(300, 6, processes=2))) == total(list(play(300, 6, processes=1)))


def test_histories_reach_every_way_a_job_can_end() -> None:
    """Without it, a spec generator that only made trivial jobs would keep every promise too."""
    left = {"FINISHED", "FAILED", "CANCELED", "STOPPED", "→SKIPPED", "→BACKOFF", "→CANCELED", "→CANCELING", "→WAITING"}
    left |= {
        "DIES",
        "FREEZES",
        "CONFLICT",
        "STALE",
        "lost: APPLIED",
        "loses",
        "IGNORES instructions",
        "KILLS the runner",
    }
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
    left |= {"RESTARTS", "ROLLED BACK", "CLOCK is set back", "CLOCK is set forward", "the store is away", "NEWER, its"}
    left |= {"its publisher FREEZES before create entry", "/dog  DIES", "leaves to a newer"}
    left |= {"RETRIED as", "RETRIED BEFORE as", "RETRY REFUSED", " of retry1", "submit retry2 as a retry of retry1"}
    left |= {"WAITING USER_RERUN", "(RETRYING): APPLIED", "(PAUSED): APPLIED", "WRONG"}
    for seed in (*FULL_OF_EVENTS, *range(600)):  # the first few suffice until histories change
        history = simulate(seed, keep_all=True)
        said = "\n".join([*history.trace, *history.statuses.values()])
        left = {seen for seen in left if seen not in said}
        if not left:
            return
    assert not left, f"no history showed {left}"
