"""Parameters that a run gets from its tick: their types, their zone, and what is refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.jobs.specs import minimal
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.schedules.schedule_state import state_of
from unstuck.coordinator.schedules.tick_params import run_spec
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.read_model.schedule import ScheduleInfo

NIGHTLY = {"cron": "30 0 * * *", "zone": "Europe/Berlin"}
TICK = datetime.fromisoformat("2026-11-26T23:30Z")
PARAMS: dict[str, Any] = {
    "day": {"type": "date", "default": "tick"},
    "since": {"type": "date", "default": "previous_tick"},
    "at": {"type": "datetime", "default": "tick"},
    "folder": {"type": "text", "default": "tick", "format": "%Y/%m/%d"},
    "word": {"type": "text", "default": "tick"},
    "limit": 10,
}


def told(schedule: Any, params: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        JobSpec.model_validate(minimal(schedule=schedule, params=params))
    return str(caught.value)


def test_a_run_gets_tick_parameters_in_the_zone_of_the_schedule() -> None:
    spec = JobSpec.model_validate(minimal(schedule=NIGHTLY, params=PARAMS))
    run = run_spec(spec, TICK)
    assert run.schedule is None
    assert run.values == {
        "day": "2026-11-27",
        "since": "2026-11-26",
        "at": "2026-11-27T00:30:00+01:00",
        "folder": "2026/11/27",
        "word": "tick",
        "limit": 10,
    }
    assert run_spec(spec, TICK).fingerprint == run.fingerprint
    hourly = JobSpec.model_validate(minimal(schedule={"every": "1h"}, params=PARAMS))
    assert run_spec(hourly, TICK).values["at"] == "2026-11-26T23:30:00+00:00"


HOURLY = {"cron": "30 * * * *", "zone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("tick", "at", "before", "folder"),
    [
        ("2026-10-24T23:30Z", "2026-10-25T01:30:00+02:00", "2026-10-25T00:30:00+02:00", "0130"),
        ("2026-10-25T00:30Z", "2026-10-25T02:30:00+02:00", "2026-10-25T01:30:00+02:00", "0230"),
        ("2026-10-25T01:30Z", "2026-10-25T02:30:00+01:00", "2026-10-25T02:30:00+02:00", "0230"),
        ("2026-10-25T02:30Z", "2026-10-25T03:30:00+01:00", "2026-10-25T02:30:00+01:00", "0330"),
        ("2026-03-29T01:30Z", "2026-03-29T03:30:00+02:00", "2026-03-29T01:30:00+01:00", "0330"),
    ],
)
def test_tick_parameters_use_the_offset_of_their_hour_around_a_clock_change(
    tick: str, at: str, before: str, folder: str
) -> None:
    params = {
        "at": {"type": "datetime", "default": "tick"},
        "before": {"type": "datetime", "default": "previous_tick"},
        "folder": {"type": "text", "default": "tick", "format": "%H%M"},
    }
    spec = JobSpec.model_validate(minimal(schedule=HOURLY, params=params))
    assert run_spec(spec, datetime.fromisoformat(tick)).values == {
        "at": at,
        "before": before,
        "folder": folder,
    }
    policy = ScheduleSpec.model_validate(HOURLY).model_dump_json(exclude_unset=True)
    state = state_of(ScheduleRecord("s", "c", "{}", policy, "/w"), 0.0, None)
    assert ScheduleInfo.of(state).on_its_clock(tick) == at.replace("T", " ")


def test_a_job_outside_its_schedule_needs_values_for_tick_parameters() -> None:
    values = minimal(schedule=NIGHTLY, params=PARAMS)
    assert JobSpec.from_values(values, None).values["day"] is None
    with pytest.raises(
        SpecError, match="its value is the tick of a schedule, and this is not a scheduled run"
    ) as caught:
        JobSpec.from_values(values, {})
    assert [problem.path for problem in caught.value.problems] == [
        f"params.{name}" for name in ("day", "since", "at", "folder")
    ]
    given = {
        "day": "2026-01-01",
        "since": "2025-12-31",
        "at": "2026-01-01T00:00Z",
        "folder": "tick",
    }
    assert JobSpec.from_values(values, given).values == {**given, "word": "tick", "limit": 10}
    with pytest.raises(SpecError, match="expected a date such as 2013-12-31, not 'tick'"):
        JobSpec.from_values(values, {**given, "day": "tick"})


@pytest.mark.parametrize(
    ("param", "words"),
    [
        (
            {"type": "integer", "default": "tick"},
            "params.p.default: expected a whole number, not 'tick'",
        ),
        ({"type": "date", "default": "ticks"}, "params.p.default: expected a date"),
        (
            {"type": "date", "default": "tick", "format": "%Y"},
            "params.p.format: only a text",
        ),
        ({"type": "text", "default": "a", "format": "%Y"}, "params.p.format: only a text"),
        (
            {"type": "text", "default": "tick", "format": "%c"},
            "params.p.format: expected text with some of %Y %m",
        ),
        (
            {"type": "text", "default": "tick", "format": "day%%"},
            "params.p.format: expected text with some of",
        ),
        (
            {"type": "text", "default": "tick", "format": ""},
            "params.p.format: expected text with some of",
        ),
        (
            {"type": "date", "default": "tick", "choices": ["2026-01-01"]},
            "params.p.choices: a parameter whose value",
        ),
    ],
)
def test_an_invalid_binding_is_refused_with_its_place(param: dict[str, Any], words: str) -> None:
    assert words in told(NIGHTLY, {"p": param})


@pytest.mark.parametrize("schedule", [None, {}, {"after": ["raw"]}])
def test_the_previous_tick_is_refused_without_a_clock_trigger(schedule: Any) -> None:
    told_of = told(schedule, {"p": {"type": "date", "default": "previous_tick"}})
    assert "params.p.default: previous_tick needs a schedule:" in told_of
