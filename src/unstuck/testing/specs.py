"""Reads the specs of tests, and the run of a schedule at one moment."""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unstuck.coordinator.schedules.tick_params import run_spec
from unstuck.coordinator.schedules.trigger import previous_tick, ticks
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.coordinator.spec.selection import select
from unstuck.job_builder import load_job

When = str | datetime.datetime

_MOMENT = datetime.timedelta(microseconds=1)


class SpecSelection(NamedTuple):
    """The groups of a job that run; all of them if empty."""

    only: Collection[str]
    from_: Collection[str]
    until: Collection[str]

    @classmethod
    def of(cls, *names: str | Collection[str]) -> SpecSelection:
        """Return the selection of a test: one name, or several."""
        return cls(*([name] if isinstance(name, str) else name for name in names))

    def names(self, spec: JobSpec) -> set[str]:
        """Return the names. Raises: NoSuchGroup, SpecError: as `select`."""
        return {group.name for group in (select(spec, *self).spec if any(self) else spec).groups}


def read_spec(
    spec: Spec, params: Mapping[str, Any], root: Path, *, scheduled: bool = False
) -> JobSpec:
    """Return a job from a value, the path of a file, or ``module:job``.

    Args:
        root: where a path is looked for that is not there in the working folder.
        scheduled: as for `JobSpec.from_file`.

    Raises: SpecError.
    """
    if isinstance(spec, str) and ":" in spec and not Path(spec).exists():
        spec = load_job(spec)
    if isinstance(spec, str | os.PathLike):
        spec = spec if Path(spec).exists() else root / spec
    return JobSpec.of(spec, params, scheduled=scheduled)


def schedule_of(spec: JobSpec) -> ScheduleSpec:
    """Return the schedule of a job. Raises: ValueError: the job has no schedule."""
    if spec.schedule is None:
        raise ValueError(f"the job {spec.name} has no schedule:, so no tick of it comes")
    return spec.schedule


def moment(when: When, zone: datetime.tzinfo) -> datetime.datetime:
    """Return ``when`` in ``zone``, unless it has its own zone.

    Of a repeated local time the first counts; a skipped one counts from before the gap. Raises:
    ValueError: it is not a time.
    """
    at = datetime.datetime.fromisoformat(when) if isinstance(when, str) else when
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(datetime.UTC)


def tick_at(spec: JobSpec, when: When) -> datetime.datetime:
    """Return the newest tick that is due at ``when``, in the zone of the schedule.

    Raises: ValueError: there is none.
    """
    schedule = schedule_of(spec)
    at = moment(when, schedule.time_zone)
    tick = previous_tick(schedule, at + _MOMENT) if schedule.cron or schedule.every else at
    if tick is None:
        raise ValueError(
            f"the schedule of {spec.name} has no tick up to {at.astimezone(schedule.time_zone)}"
        )
    return tick.astimezone(schedule.time_zone)


def ticks_between(spec: JobSpec, first: When, end: When) -> list[datetime.datetime]:
    """Return the ticks from ``first`` to before ``end``, in the zone of the schedule.

    Raises: ValueError.
    """
    schedule = schedule_of(spec)
    begin, before = (
        moment(first, schedule.time_zone) - _MOMENT,
        moment(end, schedule.time_zone) - _MOMENT,
    )
    return [tick.astimezone(schedule.time_zone) for tick in ticks(schedule, begin, before)]


def job_of(spec: JobSpec, tick: datetime.datetime) -> JobSpec:
    """Return the job of ``tick``. Raises: SpecError: a required parameter has no value."""
    return run_spec(spec, tick.astimezone(datetime.UTC))
