"""The account of what a person asked finds a pause that did not hold, and a backfill that is not as
it was wanted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.driver.judging.asked import judge_backfill, judge_pauses
from tests.chaos.driver.judging.repeated import FoundSchedule, Repeated
from tests.chaos.driver.person import Act
from tests.chaos.driver.schedules import HELD, PAST
from tests.chaos.driver_tests.test_repeated import (
    BEGAN,
    WANTED,
    Plant,
    again,
    event,
    in_order,
    record,
    run,
    without,
)
from unstuck import Status
from unstuck.coordinator.model.schedule_record import Run
from unstuck.coordinator.model.tick import tick_text

ACTS = [Act("pause", BEGAN + 2.5, BEGAN + 3), Act("resume", BEGAN + 9, BEGAN + 9.5)]
LAST = Act("pause", BEGAN + 20, BEGAN + 21)


def of_pauses(one: FoundSchedule, acts: list[Act]) -> list[str]:
    judge_pauses(account := Repeated(), one, acts)
    return account.disobeyed


def of_backfill(one: FoundSchedule, parallel: int = 1) -> Repeated:
    judge_backfill(account := Repeated(), one, WANTED, parallel)
    return account


def test_a_correct_history_of_commands_has_no_findings() -> None:
    assert of_pauses(in_order()[HELD], ACTS) == []
    account = of_backfill(in_order()[PAST])
    assert account == Repeated(backfilled=2)


def test_a_tick_skipped_for_a_reason_other_than_a_pause_is_reported() -> None:
    one = in_order()[HELD]
    missed = event(
        "SKIPPED",
        code="MISSED",
        text=f"1 tick skipped, {tick_text(BEGAN + 2)}: nobody could run it",
    )
    judge_pauses(account := Repeated(), replace(one, events=[*one.events, missed]), ACTS)
    (sentence,) = account.lost
    assert tick_text(BEGAN + 2) in sentence


def gets(tick: float, submitted_at: float) -> Plant:
    """The last run is of this tick, and was submitted then."""

    def plant(one: FoundSchedule) -> FoundSchedule:
        changed = replace(one.runs[-1], key=Run(tick).key(one.name), submitted_at=submitted_at)
        return replace(one, runs=[*one.runs[:-1], changed])

    return plant


@pytest.mark.parametrize(
    "plant",
    [
        gets(BEGAN + 4, BEGAN + 9.2),  # a tick of the pause, made up for after it
        gets(BEGAN + 4, BEGAN + 4.1),
        gets(BEGAN + 2, BEGAN + 3.1),  # a tick before the pause, submitted in it
        without("USER_PAUSE"),
        without("USER_RESUME"),
        lambda one: replace(one, events=[*one.events, event("USER_RESUME")]),
        lambda one: replace(
            one, events=[*without("USER_STOP")(one).events, event("USER_STOP", was="PAUSED")]
        ),
    ],
)
def test_a_run_during_a_pause_is_reported(plant: Plant) -> None:
    (sentence,) = of_pauses(plant(in_order()[HELD]), ACTS)
    assert HELD in sentence


def test_a_schedule_that_runs_after_its_final_pause_is_reported() -> None:
    one = in_order()[HELD]
    paused = replace(one, events=[*one.events, event("USER_PAUSE")])
    (sentence,) = of_pauses(paused, [*ACTS, LAST])
    assert "WAITING in the end" in sentence
    ended = [*without("USER_STOP")(paused).events, event("USER_STOP", was="PAUSED")]
    assert of_pauses(replace(paused, events=ended), [*ACTS, LAST]) == []
    (sentence,) = of_pauses(
        gets(BEGAN + 30, BEGAN + 30.1)(replace(paused, events=ended)), [*ACTS, LAST]
    )
    assert tick_text(BEGAN + 30) in sentence


@pytest.mark.parametrize(
    ("word", "plant"),
    [
        ("lost", record(backfill=None)),
        ("lost", run(status=Status.FAILED)),
        ("lost", lambda one: replace(one, runs=one.runs[1:])),
        ("doubled", again),
        ("doubled", gets(WANTED[0] - 86400, WANTED[1])),
        ("doubled", run(submitted_at=WANTED[0] + 0.5)),
    ],
)
def test_a_backfill_with_unrequested_settings_is_reported(word: str, plant: Plant) -> None:
    account = of_backfill(plant(in_order()[PAST]))
    assert getattr(account, word), account


def test_unfinished_backfills_and_excess_parallel_runs_are_reported() -> None:
    one = in_order()[PAST]
    assert one.record is not None
    assert one.record.backfill is not None
    assert of_backfill(record(backfill=replace(one.record.backfill, ended_at=0.0))(one)).stuck
    at_once = run(submitted_at=WANTED[0] + 0.5)(one)
    assert not of_backfill(at_once, parallel=2).doubled
