"""The account of lateness finds a run that came too late, and takes no outage for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.driver.faults import Dealt
from tests.chaos.driver.judging.lateness import LatenessReport, judge_lateness, term_of
from tests.chaos.driver.schedules import HELD
from tests.chaos.driver.uptime import Uptime
from tests.chaos.driver_tests.test_asked import ACTS, gets
from tests.chaos.driver_tests.test_repeated import BEGAN, event, in_order, run
from unstuck import Settings
from unstuck.coordinator.model.tick import tick_text

SETTINGS = Settings(lock_ttl="4s", sweep_every="500ms")
TERM, SUBMIT = 3.0, 0.1
PIDS = {1: "coordinator-1", 2: "coordinator-2"}
BEATS = [BEGAN - 10 + n for n in range(40)]
WELL = Uptime({1: BEATS, 2: BEATS}, PIDS, [], [])
SECOND = BEGAN + 2  # the tick that is late, before the pause


def judged(late: float, uptime: Uptime) -> LatenessReport:
    """The account if the run of the second tick is so late."""
    return judge_lateness(
        run(submitted_at=SECOND + late)(in_order()[HELD]), [], uptime, SETTINGS, SUBMIT
    )


def test_the_allowed_delay_is_computed_from_the_settings() -> None:
    assert term_of(SETTINGS) == TERM
    assert term_of(Settings(lock_ttl="30s", sweep_every="6s")) == 27.0


def test_a_run_is_late_only_after_the_allowed_delay() -> None:
    # The ticks that the pause left out came never, and by these acts nobody paused it.
    assert len(judged(0.1, WELL).late) == 3
    account = judge_lateness(in_order()[HELD], ACTS, WELL, SETTINGS, SUBMIT)
    assert (account.judged, account.held, account.late) == (3, 3, []), account
    assert len(judged(TERM + SUBMIT - 0.01, WELL).late) == 3
    account = judged(TERM + SUBMIT + 0.01, WELL)
    assert len(account.late) == 4
    assert any(
        "3.11 s after its tick, and 3.10 s were allowed" in sentence for sentence in account.late
    )


def test_the_allowed_delay_includes_measured_machine_pauses() -> None:
    slow = Uptime(WELL.beats, PIDS, [], [(SECOND + 1, 0.3), (SECOND + 2, 0.2), (SECOND + 5, 7.0)])
    assert len(judged(3.55, slow).late) == 3
    assert len(judged(3.65, slow).late) == 4


def hit(victim: str, begin: float, end: float) -> Dealt:
    return Dealt("fault", victim, SECOND + begin, SECOND + end)


def without_beats(pid: int, begin: float, end: float) -> Uptime:
    kept = [at for at in BEATS if not SECOND + begin <= at <= SECOND + end]
    return Uptime({**WELL.beats, pid: kept}, PIDS, [], [])


@pytest.mark.parametrize(
    ("explained", "uptime"),
    [
        (True, Uptime(WELL.beats, PIDS, [hit("redis", -3, -2)], [])),
        (False, Uptime(WELL.beats, PIDS, [hit("redis", -4, -3.1)], [])),
        (True, Uptime(WELL.beats, PIDS, [hit("redis", 2, 9)], [])),
        (False, Uptime(WELL.beats, PIDS, [hit("coordinator-1", 0, 1)], [])),
        (
            True,
            Uptime(WELL.beats, PIDS, [hit("coordinator-1", 0, 1), hit("coordinator-2", 2, 3)], []),
        ),
        (True, Uptime({1: BEATS}, PIDS, [hit("coordinator-1", 0, 1)], [])),
        (False, Uptime(WELL.beats, PIDS, [hit("a coordinator", 0, 3)], [])),
        (False, without_beats(1, -2, 2)),
        (True, Uptime({**without_beats(1, -2, 2).beats, 2: BEATS[:8]}, PIDS, [], [])),
        (True, Uptime({}, PIDS, [], [])),
    ],
)
def test_only_an_outage_excuses_a_late_run(explained: bool, uptime: Uptime) -> None:
    account = judged(4.0, uptime)
    assert explained is not any("4.00 s" in sentence for sentence in account.late), account
    assert explained is (account.worst_other == pytest.approx(4.0, abs=1e-3))


def test_a_stop_excuses_only_runs_that_are_not_yet_due() -> None:
    one = in_order()[HELD]
    stopped = [event("USER_STOP", was="WAITING", at=SECOND + 2.5)]
    account = judge_lateness(replace(one, runs=[], events=stopped), [], WELL, SETTINGS, SUBMIT)
    assert (account.held, len(account.late)) == (5, 1), account


def test_a_tick_without_a_run_is_late_unless_paused() -> None:
    one = gets(BEGAN + 100, BEGAN + 100)(in_order()[HELD])
    account = judge_lateness(one, ACTS, WELL, SETTINGS, SUBMIT)
    (sentence,) = account.late
    assert tick_text(BEGAN + 10) in sentence
    assert account.held == 3
    account = judge_lateness(one, [], WELL, SETTINGS, SUBMIT)
    assert sum("never" in sentence for sentence in account.late) == 4
