"""A coordinator whose commits of a schedule all come second says so, and tries again later."""

from __future__ import annotations

import logging

import pytest

from tests.support.coordinator import Coordinator, group
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.schedule_store import ScheduleChange

SPEC = {"name": "nightly", "groups": [group("a")], "schedule": {"every": "1d"}}


@pytest.mark.parametrize(
    ("refused", "warning"),
    [
        ("", "schedule nightly was not decided: 100 commits of others came first"),
        ("RUN_SUBMITTED", "a run of schedule nightly was not recorded: 100 commits of others"),
    ],
)
def test_a_schedule_whose_commits_are_all_refused_is_named_in_a_warning(
    coordinator: Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: str,
    warning: str,
) -> None:
    coordinator.client.schedules.set(SPEC)
    assert coordinator.client.schedules.run("nightly").answer == "DONE"
    commit = coordinator.schedule_store.commit

    def second(change: ScheduleChange) -> CommitAnswer:
        kinds = [event["kind"] for event in change.events]
        return CommitAnswer.CONFLICT if not refused or refused in kinds else commit(change)

    monkeypatch.setattr(coordinator.schedule_store, "commit", second)
    with caplog.at_level(logging.WARNING):
        coordinator.schedules.decide("nightly")
    assert warning in caplog.text

    monkeypatch.undo()
    coordinator.schedules.decide("nightly")
    assert len(coordinator.client.schedules.runs("nightly")) == 1
