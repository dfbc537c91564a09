"""A backfill is on record: any coordinator goes on with it, and each of its ticks is one job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, group
from tests.support.failpoints import Death, Died, armed
from unstuck import Status
from unstuck.coordinator.model.schedule_record import Backfill, tick_text
from unstuck.coordinator.schedules.schedule_commands import BackfillCommand
from unstuck.coordinator.views.jobs.job_views import folded
from unstuck.tasks.failpoints import Point

HOUR = 3600
BEGIN = (time.time() // HOUR - 5) * HOUR


def begun(coordinator: Coordinator, hours: int, **more: Any) -> None:
    spec = {"name": "hourly", "schedule": {"every": "1h"}, "groups": [group("a")]}
    coordinator.client.schedules.set(spec)
    given = coordinator.client.schedules.backfill(
        "hourly", tick_text(BEGIN), tick_text(BEGIN + (hours - 1) * HOUR), **more
    )
    assert given.answer == "DONE"


def backfill(coordinator: Coordinator) -> Backfill:
    found = coordinator.client.schedules.show("hourly").schedule.backfill
    assert found is not None
    return found


def sweep(coordinator: Coordinator) -> list[str]:
    coordinator.sweep.run()
    return [run.job for run in backfill(coordinator).runs]


def test_each_of_its_ticks_is_one_job_of_low_priority_under_the_key_of_the_tick(coordinator: Coordinator) -> None:
    begun(coordinator, 3, parallel=2)
    jobs = []
    while not backfill(coordinator).over:
        for job in sweep(coordinator):
            jobs.append(job)
            assert coordinator.drive(job) is Status.FINISHED
    shown = [coordinator.show(job).job for job in dict.fromkeys(jobs)]
    assert [job.key for job in shown] == [f"hourly@{tick_text(BEGIN + n * HOUR)}" for n in range(3)]
    assert {job.priority for job in shown} == {"low"}
    assert backfill(coordinator).progress == "3 of 3 ticks (3 well)"
    coordinator.client.schedules.backfill("hourly", tick_text(BEGIN), tick_text(BEGIN + 3 * HOUR))
    while not backfill(coordinator).over:
        for job in sweep(coordinator):
            coordinator.drive(job)
    assert backfill(coordinator).progress == "4 of 4 ticks (1 well, 3 had a run before)"
    ticks = {job.tick for job in coordinator.client.schedules.runs("hourly")}
    assert ticks == {tick_text(BEGIN + n * HOUR) for n in range(4)}, "each of its runs names its tick"
    events = coordinator.client.schedules.events("hourly")
    told = [event["job"] for event in events if event["kind"] == "RUN_SUBMITTED"]
    assert sorted(told) == sorted(job.id for job in coordinator.client.jobs()), "each job once, though given again"
    assert [event["job"] for event in events if event["kind"] == "RUN_STANDS"] == [job.id for job in shown]
    listed = coordinator.client.schedules.backfill_ticks("hourly", tick_text(BEGIN - HOUR), tick_text(BEGIN))
    assert [tick.had for tick in listed] == ["", shown[0].id]


@pytest.mark.parametrize("point", [Point.BEFORE_SUBMIT, Point.AFTER_SUBMIT])
def test_the_death_of_a_coordinator_around_a_submit_leaves_one_job_for_the_tick(
    coordinator: Coordinator, point: Point
) -> None:
    begun(coordinator, 2)
    with armed(Death([point])), pytest.raises(Died):
        coordinator.sweep.run()
    assert [run.job for run in backfill(coordinator).runs] == [""]
    coordinator.schedules.decide("hourly")
    (job,) = sweep(coordinator)
    assert coordinator.show(job).job.key == f"hourly@{tick_text(BEGIN)}"
    assert len(coordinator.client.jobs()) == 1
    assert coordinator.drive(job) is Status.FINISHED
    (second,) = sweep(coordinator)
    assert second != job


def test_a_canceled_backfill_leaves_its_run_to_end_and_starts_no_other(coordinator: Coordinator) -> None:
    begun(coordinator, 3)
    (job,) = sweep(coordinator)
    assert coordinator.client.schedules.command_backfill("hourly", BackfillCommand.CANCEL).answer == "DONE"
    assert sweep(coordinator) == [job]
    coordinator.drive(job)
    assert sweep(coordinator) == []
    assert (backfill(coordinator).status, len(coordinator.client.jobs())) == ("CANCELED", 1)


def test_the_list_shows_the_runs_of_a_backfill_as_one_line(coordinator: Coordinator) -> None:
    begun(coordinator, 3, parallel=3)
    sweep(coordinator)
    jobs = coordinator.client.jobs()
    assert {(job.schedule, job.backfill) for job in jobs} == {("hourly", tick_text(backfill(coordinator).at))}
    assert [len(line) for line in folded(jobs)] == [3]
