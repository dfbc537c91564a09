"""``schedule why``: each status is explained, with since when and by whom, and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.coordinator.schedules.test_decide_schedule import FAILED, STANDS, T0, Play, record
from unstuck.coordinator.explain.explanation import AT_WORK, Idle
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Run, ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.decide_schedule import settled
from unstuck.coordinator.schedules.explain import ScheduleExplanation, explain_schedule
from unstuck.coordinator.schedules.schedule_state import state_of

HELPS = {
    "WAITING": "",
    "RUNNING": "",
    "RETRYING": "unstuck schedule run s",
    "PAUSED": "unstuck schedule resume s",
    "HALTED": "unstuck schedule resume s",
    "STOPPED": "unstuck schedule remove s",
    "FINISHED": "unstuck schedule remove s",
}


def explained(play: Play, idle: Idle = AT_WORK) -> tuple[ScheduleExplanation, dict[str, str]]:
    found = explain_schedule(
        state_of(play.record, play.now, None), idle, {"j": "no runner listens"}
    )
    return found, {fact.what: fact.text for fact in found.facts}


@pytest.mark.parametrize("status", ScheduleStatus)
def test_every_status_is_explained_with_a_remedy(status: ScheduleStatus) -> None:
    found, _ = explained(Play(settled(STANDS[status], T0)))
    assert found.status is status
    assert found.what
    assert any(command.startswith(HELPS[status]) for command in [*found.help, ""])
    assert bool(found.help) is bool(HELPS[status])


def test_a_retrying_schedule_shows_count_errors_and_next_try() -> None:
    play = Play(record())
    play.at(60)
    play.fails(61)
    play.at(71)
    play.ends(Status.FAILED, 72, replace(FAILED, text="it broke otherwise"))
    found, facts = explained(play)
    assert facts["failures"] == "2 in a row; up to 10 are tried again"
    assert facts["first error"].startswith("STEP_FAILED: it broke ")
    assert "it broke otherwise" in facts["last error"]
    assert f"unstuck logs {play.submitted[1]}" in facts["last error"]
    assert [fact.at for fact in found.facts if fact.text.startswith("try 3 of")] == [T0 + 92]


def test_a_halted_schedule_shows_no_next_retry() -> None:
    play = Play(record())
    play.at(60)
    play.ends(Status.FAILED, 61, Reason("BAD_FILE", "line 39: a record has 5 fields"))
    halted = replace(play.record, halted=Reason("BAD_FILE", "no further try can mend it"))
    found, facts = explained(Play(settled(halted, T0 + 62)))
    assert found.status is ScheduleStatus.HALTED
    assert facts["failures"] == "1 in a row; no retry is pending"


def test_running_groups_are_shown_with_their_waits() -> None:
    _, facts = explained(Play(settled(STANDS[ScheduleStatus.RUNNING], T0)))
    assert facts["running"].endswith("no runner listens")


def test_a_pause_shows_its_author_and_reason() -> None:
    play = Play(record())
    play.command("pause", 5)
    assert explained(play)[1]["asked"] == "pause by bob: why not"


def test_a_schedule_without_a_coordinator_reports_it() -> None:
    found, _ = explained(Play(record()), Idle(120.0))
    assert found.what.startswith("no coordinator has looked for 2m00s")
    assert found.help[0] == "unstuck fleet"


@pytest.mark.parametrize("status", ScheduleStatus)
def test_only_an_active_schedule_shows_next_ticks(
    status: ScheduleStatus,
) -> None:
    ticks = state_of(settled(STANDS[status], T0), T0, None).next_ticks(2)
    assert len(ticks) == (2 if status in ("WAITING", "RUNNING", "RETRYING") else 0)


@pytest.mark.parametrize(
    "policy", [{"retry": {"max": 3}}, {"every": "1h"}], ids=["by hand", "every"]
)
def test_a_failure_whose_retry_was_canceled_shows_what_runs_next(
    policy: dict[str, Any],
) -> None:
    play = Play(settled(replace(record(**policy), requests=(Run(T0, by="bob"),)), T0))
    play.at(1)
    play.fails(2)
    play.at(12)
    play.ends(Status.CANCELED, 13, Reason("USER_CANCELED", "by a person"))
    found, facts = explained(play)
    assert facts["failures"] == "1 in a row; no retry is pending"
    assert found.what.startswith("its last run failed, and is not tried again; ")
    assert found.help[0].startswith("unstuck schedule run s")
