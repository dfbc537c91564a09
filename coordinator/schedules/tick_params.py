"""The job of one tick: what its parameters get from the instant for which it runs (pure)."""

from __future__ import annotations

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
    schedule = spec.schedule or ScheduleSpec()
    given = {
        name: value
        for name, written in spec.params.items()
        if (value := _value_of(written, schedule, name, tick)) is not None
    }
    written = {name: getattr(spec, name) for name in spec.model_fields_set - {"schedule"}}
    if spec.notify:
        written["notify"] = [rule for one in spec.notify if (rule := one.of_run()) is not None]
    return JobSpec.from_values(written, given)


def _value_of(written: Any, schedule: ScheduleSpec, name: str, tick: datetime) -> Any:
    """The value that a tick gives to a parameter; None: it gives none. Raises: SpecError."""
    bound = tick_of(written)
    if not bound:
        return None
    at = tick if bound == "tick" else previous_tick(schedule, tick)
    if at is None:
        raise SpecError([Problem(f"there is no tick before {tick.isoformat()}", ("params", name))])
    local = at.astimezone(schedule.time_zone)
    match written["type"]:
        case "date":
            return local.date()
        case "datetime":
            return local
        case _:
            return local.strftime(written["format"])
