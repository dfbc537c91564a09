"""Histories of schedules keep every promise; planted bugs break one; the real store and its scripts
play them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.mirror import AGREE
from tests.simulation.model.paired import PairedStores, paired_stores
from tests.simulation.planted.planted_bug import NEAR, PlantedBug
from tests.simulation.rules.broken import Broken
from tests.simulation.schedules.actors import Landing
from tests.simulation.schedules.history import simulate_schedules
from tests.simulation.schedules.lost_run_bugs import LOST_RUN_BUGS
from tests.simulation.schedules.mirror import MirroredSchedules
from tests.simulation.schedules.planted import SCHEDULE_BUGS, tick_starts_under_a_pause
from tests.simulation.schedules.rules import RULES, UNREAD, Rules
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.schedules.told import UNWELL, ToldRules
from tests.simulation.stage.shrink import explained, shrink
from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.model.schedule_record import Run, ScheduleRecord
from unstuck.coordinator.schedules.schedule_commands import set_again
from unstuck.coordinator.store.schedule_store import ScheduleChange

SEEDS = 20  # CI plays more by `make simulate`
SAMPLE = [
    bug for bug in (*SCHEDULE_BUGS, *LOST_RUN_BUGS) if bug.seed is not None
]  # all: make mutants


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_schedules_keep_every_promise_despite_losses_kills_and_clock_changes(
    first: int,
) -> None:
    broken = [
        history
        for seed in range(first, first + 10)
        if not (history := simulate_schedules(seed)).kept
    ]
    assert not broken, "\n".join(explained(history) for history in broken)


def test_each_rule_about_schedules_has_an_injected_bug() -> None:
    assert {bug.rule for bug in SAMPLE} == set(RULES)


@pytest.mark.parametrize("bug", SAMPLE, ids=lambda bug: bug.name)
def test_an_injected_schedule_bug_is_detected(bug: PlantedBug) -> None:
    history = bug.search(bug.seed, limit=NEAR)
    assert history is not None, (
        f"seeds from {bug.seed} on keep {bug.rule!r}; `make mutants` prints another seed"
    )
    assert simulate_schedules(history.seed).kept, "the same history without the bug"


def test_a_failing_history_of_schedules_is_shrunk_to_one_with_the_same_failure() -> None:
    bug = tick_starts_under_a_pause
    with bug.planted():
        shrunk = shrink(bug.seed, 60, simulate_schedules)
    assert shrunk is not None
    assert shrunk.result.promise == shrunk.whole.promise == bug.rule
    assert len(shrunk.part.requests or ()) < shrunk.whole.requests
    assert shrunk.part.faults == frozenset(), "none is needed"
    assert f"python -m tests.simulation --schedules --shrink {bug.seed}\n" in shrunk.explained()
    assert f"python -m tests.simulation --schedules --trace {bug.seed}\n" in explained(shrunk.whole)


def test_the_same_seed_gives_the_same_history_of_schedules() -> None:
    once, again = simulate_schedules(7, keep_all=True), simulate_schedules(7, keep_all=True)
    assert len(once.trace) > 20
    assert once.trace == again.trace


@pytest.mark.long
def test_histories_of_schedules_reach_every_event() -> None:
    left = {
        "HALTED RETRIES_EXHAUSTED",
        "SKIPPED OVERLAP",
        "SKIPPED MISSED",
        "SKIPPED PAUSED",
        "BACKFILL_ENDED",
    }
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


class QuietStage:
    """A stage on which nothing goes wrong, with the rules and one schedule that reads a stream at
    its ticks.
    """

    bound = 12.0

    def __init__(self, **policy: Any) -> None:
        self.stage = Stage(0)
        self.core, self.landing = ModelSchedules(lambda: self.stage.now), Landing()
        trouble = Trouble(self.stage.rng, lambda: self.stage.now, ends=0.0)
        self.rules = Rules(self.stage, trouble, self.core, Depot(), self.landing, self.bound)
        self.policy = json.dumps({"every": 20, "only_if": "arrived", **policy})

    def sets(self) -> ScheduleRecord:
        record = ScheduleRecord("s", "", "{}", self.policy, "/w")
        return self.commits(set_again(None, record, self.stage.now).record)

    def commits(self, record: ScheduleRecord) -> ScheduleRecord:
        answer = self.core.commit(
            ScheduleChange(self.stage.mint(), record.commit, record, due=self.stage.now)
        )
        assert answer == "APPLIED"
        return self.core.schedules["s"].read()

    def goes_on(self, seconds: float) -> None:
        """Let time pass, and check the rules each second. Raises: Broken."""
        for _ in range(round(seconds)):
            self.stage.now += 1.0
            self.rules.look()

    def finds_nothing(self, record: ScheduleRecord, seconds: float) -> ScheduleRecord:
        """Let time pass in which each tick is decided and begins no run. Raises: Broken."""
        for _ in range(round(seconds / 10)):
            self.goes_on(10)
            record = self.commits(replace(record, cursor=self.stage.now))
        return record


def test_a_file_that_arrived_before_its_schedule_was_set_waits_for_the_first_tick() -> None:
    quiet = QuietStage()
    quiet.landing.arrived["s"] = [quiet.stage.now]
    quiet.stage.now += 61.0
    record = quiet.finds_nothing(quiet.sets(), 30)
    with pytest.raises(Broken, match=UNREAD):
        quiet.finds_nothing(record, 10)


def test_a_file_read_by_an_active_run_is_not_unread() -> None:
    quiet = QuietStage(overlap="allow")
    quiet.landing.arrived["s"] = [quiet.stage.now]
    running = replace(quiet.sets(), runs=(Run(quiet.stage.now, job="j"),))
    running = quiet.finds_nothing(running, 100)
    ended = quiet.finds_nothing(replace(running, runs=(), busy_until=quiet.stage.now), 30)
    with pytest.raises(Broken, match=UNREAD):
        quiet.finds_nothing(ended, 10)


def test_lateness_notified_with_a_success_ends_by_itself() -> None:
    """A clock that was ahead for a moment brings a deadline and takes it back."""
    quiet = QuietStage()
    record = replace(quiet.sets(), spec='{"notify": [{"on": ["late", "recovered"]}]}')
    rules = ToldRules(quiet.core, quiet.rules.broken)

    def notifies(*words: str, kinds: tuple[str, ...] = ()) -> None:
        name, status = record.name, record.status
        notices = [
            Notice(word, ("ops",), word, "schedule", name, "j", "", 0.0, 0.0, status, "")
            for word in words
        ]
        events = [{"kind": kind, "job": "j"} for kind in kinds]
        texts = [notice.to_json() for notice in notices]
        rules.committed(record, record, ScheduleChange("", "", record, events, notices=texts))

    with pytest.raises(Broken, match=UNWELL):
        notifies("recovered")
    notifies("finished", "late", kinds=("RUN_FINISHED",))
    notifies("recovered")
    with pytest.raises(Broken, match=UNWELL):
        notifies("recovered")


class Mirror:
    """Plays histories on both stores, and remembers which answers were the same."""

    def __init__(self, both: PairedStores) -> None:
        self.seen: set[str] = set()
        self._made = partial(
            MirroredSchedules,
            client=both.client,
            bytes_client=both.bytes_client,
            compared=self.seen.add,
        )

    def play(self, seed: int, store: Callable[..., ModelSchedules] | None = None) -> str:
        return simulate_schedules(seed, store=store or self._made).text

    def of(self, kind: type[MirroredSchedules]) -> Callable[..., ModelSchedules]:
        return partial(kind, **self._made.keywords)


@pytest.mark.variant
def test_the_real_schedule_store_and_its_scripts_replay_the_same_histories() -> None:
    with paired_stores() as both:
        mirror = Mirror(both)
        assert [text for seed in range(15) if (text := mirror.play(seed))] == []
        wanted = {
            "commit: APPLIED",
            "commit: CONFLICT",
            "take due: 1",
            "repair: 1",
            "forget runs: 1",
        }
        assert wanted <= mirror.seen

        class Later(MirroredSchedules):
            """A model that is not what the script is: a commit sets the due to what it thinks
            right.
            """

            def _set_due(self, name: str, change: ScheduleChange) -> None:
                if change.due is None:
                    self.due.pop(name, None)
                else:
                    self.due[name] = round(change.due, 6)

        assert any(AGREE in mirror.play(seed, mirror.of(Later)) for seed in range(40))
