"""Builds the job of one tick, with the values of its parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.schedules.trigger import previous_tick
from unstuck.coordinator.spec.job_params import tick_of
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError, SpecProblem
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.tasks.spec.inputs import DatasetInput, GroupInput

NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


def run_spec(spec: JobSpec, tick: datetime, params: Mapping[str, Any] = NO_PARAMS) -> JobSpec:
    """Return the job of ``spec`` for ``tick``, with all parameter values and without its schedule.

    The same tick has the same values at any time and on any host, so a run that is submitted twice
    is one job.

    Args:
        params: values for a manual run, instead of those of the tick.

    Raises:
        SpecError: a required parameter has no value, or there is no tick before this one.
    """
    bound = {name: written for name, written in spec.params.items() if name not in params}
    values = {**tick_params(bound, spec.schedule or ScheduleSpec(), tick), **params}
    written = {name: getattr(spec, name) for name in spec.model_fields_set - {"schedule"}}
    if spec.steps_zone:
        written["zone"] = spec.steps_zone
    if spec.notify:
        rules = [rule.of_run() for rule in spec.notify]
        written["notify"] = [rule for rule in rules if rule is not None]
    return JobSpec.from_values(written, values)


def reading(spec: JobSpec, dataset: str, version: int) -> JobSpec:
    """Return ``spec`` with every input of ``dataset`` read at ``version``."""

    def read(group_input: GroupInput) -> GroupInput:
        follows = (
            isinstance(group_input, DatasetInput)
            and group_input.dataset == dataset
            and group_input.version is None
        )
        return group_input.model_copy(update={"version": version}) if follows else group_input

    groups = [
        group.model_copy(
            update={
                "inputs": {name: read(group_input) for name, group_input in group.inputs.items()}
            }
        )
        for group in spec.groups
    ]
    return spec.model_copy(update={"groups": groups})


def tick_params(
    params: Mapping[str, Any], schedule: ScheduleSpec, tick: datetime
) -> dict[str, str]:
    """Return the values of the parameters that are bound to the tick. Raises: SpecError."""
    bound = {name: tick_of(written) for name, written in params.items()}
    return {
        name: _value_of(params[name], bound_to, schedule, name, tick)
        for name, bound_to in bound.items()
        if bound_to
    }


def _value_of(written: Any, bound: str, schedule: ScheduleSpec, name: str, tick: datetime) -> str:
    at = tick if bound == "tick" else previous_tick(schedule, tick)
    if at is None:
        raise SpecError(
            [SpecProblem(f"there is no tick before {tick.isoformat()}", ("params", name))]
        )
    local = at.astimezone(schedule.time_zone)
    match written["type"]:
        case "date":
            return local.date().isoformat()
        case "datetime":
            return local.isoformat()
        case _:
            return local.strftime(written["format"])
