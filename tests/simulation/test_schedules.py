"""Histories of schedules keep every promise; planted bugs break one; the real store and its scripts play them too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.model.mirror import AGREE
from tests.simulation.model.paired import PairedStores, paired_stores
from tests.simulation.schedules.history import simulate_schedules
from tests.simulation.schedules.mirror import MirroredSchedules
from tests.simulation.schedules.planted import IN_SCHEDULES, PlantedInSchedules
from tests.simulation.schedules.rules import RULES
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.stage.shrink import explained, shrink
from unstuck.coordinator.store.schedule_store import ScheduleChange

SEEDS = 60  # CI plays 2,000 by `make simulate`


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_promise_about_schedules_is_kept_whatever_is_lost_killed_or_set_back(first: int) -> None:
    broken = [history for seed in range(first, first + 20) if not (history := simulate_schedules(seed)).kept]
    assert not broken, "\n".join(explained(history) for history in broken)


def test_every_rule_about_schedules_is_broken_by_some_bug() -> None:
    assert {bug.breaks for bug in IN_SCHEDULES} == set(RULES)


@pytest.mark.parametrize("bug", IN_SCHEDULES, ids=lambda bug: bug.name)
def test_a_bug_of_schedules_put_in_on_purpose_is_found(bug: PlantedInSchedules) -> None:
    found = bug.search()
    assert found is not None, f"{bug.name!r} did not break {bug.breaks!r} in {bug.within} seeds"
    assert simulate_schedules(found.seed).kept, "the same history without the bug"


def test_a_history_of_schedules_that_breaks_a_promise_is_shrunk_to_little_that_breaks_the_same_one() -> None:
    (bug,) = [bug for bug in IN_SCHEDULES if bug.name == "a tick begins under a pause"]
    with bug.planted():
        shrunk = shrink(bug.start, 60, simulate_schedules, "--schedules --shrink")
    assert shrunk is not None
    assert shrunk.result.promise == shrunk.whole.promise == bug.breaks
    assert len(shrunk.part.requests or ()) < shrunk.whole.requests
    assert shrunk.part.faults == frozenset(), "none is needed"
    assert f"--schedules --shrink {bug.start}" in shrunk.explained()


def test_the_same_seed_is_the_same_history_of_schedules() -> None:
    once, again = simulate_schedules(7, keep_all=True), simulate_schedules(7, keep_all=True)
    assert len(once.trace) > 20
    assert once.trace == again.trace


def test_histories_of_schedules_reach_what_can_happen_to_one() -> None:
    left = {"HALTED RETRIES_EXHAUSTED", "SKIPPED OVERLAP", "SKIPPED MISSED", "SKIPPED PAUSED", "BACKFILL_ENDED"}
    left |= {
        "LEFT",
        "RUN_CANCELED",
        "RUN_FAILED STEP_FAILED",
        "RUN_STANDS",
        "ROLLED BACK",
        "CLOCK is set back",
        "LOSES",
    }
    left |= {
        "CLOCK is set forward",
        "COUNTS_FROM_NOW",
        "DIES",
        "FREEZES AFTER",
        "CONFLICT",
        "is not wanted as it was",
        "/2 as",
        "RESTARTS",
        "STOPPED",
    }
    for seed in range(300):  # the first few suffice
        said = "\n".join(simulate_schedules(seed, keep_all=True).trace)
        left = {seen for seen in left if seen not in said}
        if not left:
            return
    assert not left, f"no history showed {left}"


class Mirror:
    """Plays histories on both stores, and remembers which answers were the same."""

    def __init__(self, both: PairedStores) -> None:
        self.seen: set[str] = set()
        self._made = partial(
            MirroredSchedules, client=both.client, bytes_client=both.bytes_client, compared=self.seen.add
        )

    def play(self, seed: int, store: Callable[..., ModelSchedules] | None = None) -> str:
        return simulate_schedules(seed, store=store or self._made).text

    def of(self, kind: type[MirroredSchedules]) -> Callable[..., ModelSchedules]:
        return partial(kind, **self._made.keywords)


def test_the_real_store_of_schedules_and_its_scripts_play_the_same_histories() -> None:
    with paired_stores() as both:
        mirror = Mirror(both)
        assert [text for seed in range(15) if (text := mirror.play(seed))] == []
        wanted = {"commit: APPLIED", "commit: CONFLICT", "take due: 1", "repair: 1", "forget runs: 1"}
        assert wanted <= mirror.seen

        class Later(MirroredSchedules):
            """A model that is not what the script is: a commit sets the due to what it thinks right."""

            def _set_due(self, name: str, change: ScheduleChange) -> None:
                if change.due is None:
                    self.due.pop(name, None)
                else:
                    self.due[name] = round(change.due, 6)

        assert any(AGREE in mirror.play(seed, mirror.of(Later)) for seed in range(40))
