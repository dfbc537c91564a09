"""Histories under a seed keep every promise; planted bugs break one; a seed is a history."""

from __future__ import annotations

import random
import threading

import pytest

from tests.simulation.__main__ import play, total
from tests.simulation.planted.delay_bugs import DELAY_BUGS
from tests.simulation.planted.planted_bug import NEAR, PlantedBug
from tests.simulation.planted.promise_bugs import PROMISE_BUGS, late_failure_resumes_a_paused_job
from tests.simulation.rules.broken import COSTS, FORGOTTEN, NOTICES, ONE, SHOWN, WAIT, WHOLE, WORD
from tests.simulation.stage.history import simulate
from tests.simulation.stage.shrink import explained, shrink

SEEDS = 20  # .ci/run plays 1,000: make simulate SEEDS=1000
FULL_OF_EVENTS = (9, 7, 163, 235, 151, 204, 295, 183)
SAMPLE = [bug for bug in (*PROMISE_BUGS, *DELAY_BUGS) if bug.seed is not None]  # all: make mutants


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_promise_is_kept_despite_losses_kills_and_freezes(first: int) -> None:
    broken = [history for seed in range(first, first + 10) if not (history := simulate(seed)).kept]
    assert not broken, "\n".join(explained(history) for history in broken)


def test_each_rule_has_an_injected_bug() -> None:
    rules = {FORGOTTEN, ONE, WORD, WAIT, SHOWN, WHOLE, *COSTS, *NOTICES}
    assert {bug.rule for bug in SAMPLE} == rules


@pytest.mark.parametrize("bug", SAMPLE, ids=lambda bug: bug.name)
def test_an_injected_bug_is_detected(bug: PlantedBug) -> None:
    history = bug.search(bug.seed, limit=NEAR)
    assert history is not None, (
        f"seeds from {bug.seed} on keep {bug.rule!r}; `make mutants` prints another seed"
    )
    assert simulate(history.seed).kept, "the same history without the bug"
    assert f"--trace {history.seed}" in explained(history)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = simulate(7, keep_all=True), simulate(7, keep_all=True)
    assert len(first.trace) > 20
    assert first.trace == second.trace


def test_random_numbers_drawn_by_other_threads_change_no_history() -> None:
    """Threads of other tests that were still running once hid two planted bugs."""
    expected = simulate(7, keep_all=True)
    stopped = threading.Event()

    def draw() -> None:
        while not stopped.is_set():
            random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert simulate(7, keep_all=True).trace == expected.trace
    finally:
        stopped.set()
        thread.join()


@pytest.mark.variant
def test_a_failing_history_is_shrunk() -> None:
    """The shrunk history breaks the same promise with fewer commands, faults and steps."""
    bug = late_failure_resumes_a_paused_job
    history = bug.search(51)  # also has commands and faults that the bug does not need
    assert history is not None
    with bug.planted():
        whole = simulate(history.seed, keep_all=True)
        shrunk = shrink(history.seed, 40)
    assert shrunk is not None
    assert shrunk.result.promise == history.promise
    for what, (few, many) in shrunk.counts.items():
        assert few <= (many + 1) // 2, f"{few} of {many} {what} are left"
    assert len(shrunk.result.trace) < len(whole.trace)
    assert f"--shrink {history.seed}" in shrunk.explained()
    assert shrink(history.seed, 1) is None, "without the bug every promise is kept"


@pytest.mark.variant
def test_many_processes_replay_the_same_histories_as_one() -> None:
    assert total(list(play(300, 6, processes=2))) == total(list(play(300, 6, processes=1)))


EVENTS = (
    *("FINISHED", "FAILED", "CANCELED", "STOPPED"),
    *("→SKIPPED", "→BACKOFF", "→CANCELED", "→CANCELING", "→WAITING", "→JOB_TIMEOUT"),
    *(
        "DIES",
        "/dog  DIES",
        "FREEZES",
        "its publisher FREEZES before create entry",
        "shell is KILLED",
    ),
    *(
        "CONFLICT",
        "STALE",
        "ALREADY",
        "REFUSED",
        "WRONG",
        "loses",
        "IGNORES instructions",
        "KILLS the runner",
    ),
    *(
        "lost: APPLIED",
        "released: APPLIED",
        "canceled: APPLIED",
        "(RETRYING): APPLIED",
        "(PAUSED): APPLIED",
    ),
    *("abort of", "package of", "CONDITION_FALSE", "WHEN_FAILED", "QUEUE_TIMEOUT"),
    *("SKIPPED USER_SKIPPED", "WAITING USER_RERUN", "BACKOFF ALTERED"),
    *("RESTARTS", "ROLLED BACK", "CLOCK is set back", "CLOCK is set forward", "the store is away"),
    *("NEWER, its", "leaves to a newer"),
    *(
        "RETRIED as",
        "RETRIED BEFORE as",
        "RETRY REFUSED",
        " of retry1",
        "submit retry2 as a retry of retry1",
    ),
)


def test_histories_reach_every_possible_end_of_a_job() -> None:
    """A generator that made only trivial jobs would keep every promise too."""
    missing = set(EVENTS)
    for seed in (*FULL_OF_EVENTS, *range(600)):  # the first few suffice until histories change
        history = simulate(seed, keep_all=True)
        text = "\n".join([*history.trace, *history.statuses.values()])
        missing = {event for event in missing if event not in text}
        if not missing:
            return
    assert not missing, f"no history showed {missing}"
