"""The same histories, played on the model and on the real store code and scripts on a real Valkey
at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.simulation.model.mirror import AGREE, Mirrored
from tests.simulation.model.paired import PairedStores, paired_stores
from tests.simulation.model.store import ModelStore
from tests.simulation.stage.history import simulate
from tests.simulation.stage.shrink import explained
from unstuck.tasks.protocol.process_info import RunnerInfo

SEEDS = 200
LEAST = 20
SECONDS = 8.0  # .ci/run plays more of them: make mirror SEEDS=100


@pytest.fixture
def both() -> Iterator[PairedStores]:
    with paired_stores() as made:
        yield made


@pytest.mark.variant
def test_the_real_store_and_its_scripts_replay_the_same_histories(both: PairedStores) -> None:
    began = time.monotonic()
    for seed in range(SEEDS):
        history = both.play(seed)
        assert history.kept, explained(history)
        if seed + 1 >= LEAST and time.monotonic() - began > SECONDS:
            break
    # What comes up in the first histories; rarer answers are held by test_model.py.
    assert {"commit: APPLIED", "take: CLAIMED", "take: EMPTY", "finish: APPLIED"} <= both.seen
    assert {
        "renew: CONTINUE",
        "begin: LOCKED",
        "begin: BUSY",
        "end: RELEASED",
        "command: APPLIED",
    } <= both.seen


class _Blind(Mirrored):
    """A model that is not what the scripts are: a pass sets the due to what it thinks right."""

    def _set_due(self, job_id: str, due: float | None, due_seen: str) -> None:
        if due is None:
            self.due.pop(job_id, None)
        else:
            self.due[job_id] = due


@pytest.mark.variant
def test_a_model_that_differs_from_the_scripts_is_detected(both: PairedStores) -> None:
    assert any(both.play(seed, _Blind).promise == AGREE for seed in range(SEEDS))


class _NoneIdle(Mirrored):
    """A model to which no runner is idle, whatever it has said."""

    def _idle(self, runner: RunnerInfo) -> bool:
        return False


def test_a_model_with_different_wake_ups_than_the_real_store_is_detected(
    both: PairedStores,
) -> None:
    said = next(text for seed in range(SEEDS) if (text := both.play(seed, _NoneIdle).text))
    assert said.startswith(f"{AGREE}: wake-ups: ")


def test_a_history_is_the_same_with_and_without_the_real_store(both: PairedStores) -> None:
    alone, beside = simulate(4, store=ModelStore), both.play(4)
    assert (alone.steps, alone.commits, alone.statuses) == (
        beside.steps,
        beside.commits,
        beside.statuses,
    )
