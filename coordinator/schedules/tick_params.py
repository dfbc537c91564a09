"""The job of one tick: what its parameters get from the instant for which it runs (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from unstuck.coordinator.schedules.trigger import previous_tick
from unstuck.coordinator.spec.job_params import tick_of
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import Problem, SpecError
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec


def run_spec(spec: JobSpec, tick: datetime) -> JobSpec:
    """The ordinary job that ``spec`` is at ``tick``: without its schedule, and with a value for each parameter.

    The same tick has the same values at any time and on any host, so that a run that is submitted twice is one job.

    Raises:
        SpecError: a required parameter has no value; or there is no tick before this one.
    """
    given = tick_params(spec.params, spec.schedule or ScheduleSpec(), tick)
    written = {name: getattr(spec, name) for name in spec.model_fields_set - {"schedule"}}
    if spec.notify:
        written["notify"] = [rule for one in spec.notify if (rule := one.of_run()) is not None]
    return JobSpec.from_values(written, given)


def tick_params(params: Mapping[str, Any], schedule: ScheduleSpec, tick: datetime) -> dict[str, str]:
    """The values that a tick gives to those parameters of a spec that are bound to it. Raises: SpecError: as above."""
    return {
        name: _value_of(written, bound, schedule, name, tick)
        for name, written in params.items()
        if (bound := tick_of(written))
    }


def _value_of(written: Any, bound: str, schedule: ScheduleSpec, name: str, tick: datetime) -> str:
    at = tick if bound == "tick" else previous_tick(schedule, tick)
    if at is None:
        raise SpecError([Problem(f"there is no tick before {tick.isoformat()}", ("params", name))])
    local = at.astimezone(schedule.time_zone)
    match written["type"]:
        case "date":
            return local.date().isoformat()
        case "datetime":
            return local.isoformat()
        case _:
            return local.strftime(written["format"])
