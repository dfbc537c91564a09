"""A run gets its parameters from its tick, and a schedule is set without values for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, group
from tests.support.servers import wait_until
from unstuck import SpecError
from unstuck.coordinator.model.schedule_record import Run
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.spec.job_params import values_of

DAY: dict[str, Any] = {"type": "date", "default": "tick"}
SPEC = {
    "name": "nightly",
    "schedule": {"cron": "30 0 * * *", "zone": "Europe/Berlin"},
    "params": {"day": DAY, "since": {"type": "datetime", "default": "previous_tick"}},
    "groups": [group("a")],
}


def test_a_run_of_a_schedule_without_values_uses_the_values_of_its_tick(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    schedules, path = coordinator.client.schedules, tmp_path / "nightly.json"
    path.write_text(json.dumps(SPEC))
    assert schedules.set(path).answer == "DONE"
    assert schedules.set(SPEC).answer == "ALREADY"
    schedules.backfill("nightly", "2026-03-30", "2026-03-30")
    job = Run(tick=1774823400.0).job_id("nightly")

    def submitted() -> bool:
        coordinator.sweep.run()
        return job in [one.id for one in coordinator.client.jobs()]

    wait_until(submitted, 10, "the run of the 30th of March")
    record = coordinator.show(job)
    assert record.key == "nightly@2026-03-29T22:30:00Z"
    written = coordinator.client.written(job)
    assert values_of(written["params"]) == {
        "day": "2026-03-30",
        "since": "2026-03-29T00:30:00+01:00",
    }
    assert written["zone"] == "Europe/Berlin", "the day that its steps cut is that of the tick"
    assert "schedule" not in written
    (plan,) = coordinator.record(job).group_plans(coordinator.store.load(job).plan).values()
    assert json.loads(plan)["judged_at"] == 1774823400.0, "rows are judged as of the tick"


def test_a_backfill_keeps_its_time_zone_when_the_schedule_changes(
    coordinator: Coordinator,
) -> None:
    """Half past midnight in Berlin is the day before in UTC, which another tick has loaded."""
    schedules = coordinator.client.schedules
    schedules.set(SPEC)
    schedules.backfill("nightly", "2026-03-30", "2026-03-30")
    (told,) = schedules.backfill_ticks("nightly", "2026-03-30", "2026-03-30")
    schedules.set({**SPEC, "schedule": {"cron": "30 0 * * *", "zone": "UTC"}})
    coordinator.sweep.run()
    (job,) = coordinator.client.jobs()
    assert values_of(coordinator.client.written(job.id)["params"]) == told.params
    assert told.params["day"] == "2026-03-30"


def test_a_schedule_without_a_time_zone_uses_the_zone_of_the_fleet(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Midnight in UTC is the day before in New York, which is the day that the steps cut."""
    coordinator = make_coordinator(time_zone="America/New_York")
    daily = {**SPEC, "schedule": {"every": "1d"}, "params": {"day": DAY}}
    assert coordinator.client.schedules.set(daily).answer == "DONE"
    assert coordinator.client.schedules.set(daily).answer == "ALREADY"
    (tick,) = coordinator.client.schedules.backfill_ticks("nightly", "2026-03-29", "2026-03-29")
    assert (tick_text(tick.tick), tick.params) == (
        "2026-03-30T00:00:00Z",
        {"day": "2026-03-29"},
    )
    coordinator.client.schedules.backfill("nightly", "2026-03-29", "2026-03-29")
    coordinator.sweep.run()
    (job,) = coordinator.client.jobs()
    written = coordinator.client.written(job.id)
    assert (values_of(written["params"]), written["zone"]) == (
        {"day": "2026-03-29"},
        "America/New_York",
    )


def test_a_schedule_with_a_parameter_that_no_tick_provides_is_refused(
    coordinator: Coordinator,
) -> None:
    params = {"day": DAY, "source": {"type": "text", "required": True}}
    with pytest.raises(SpecError, match="a value is required") as caught:
        coordinator.client.schedules.set({**SPEC, "params": params})
    assert [problem.path for problem in caught.value.problems] == ["params.source"]
    assert coordinator.client.schedules.names() == []
