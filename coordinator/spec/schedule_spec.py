"""``schedule:`` of a job spec: when it runs, and what happens with missed and failed runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from unstuck.coordinator.spec.problems import Loc, SpecProblem, describe, listed, shorten
from unstuck.tasks.duration import Seconds
from unstuck.tasks.spec.fields import DatasetName, Listed, Strict
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.inputs import DatasetInput

_CRON_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L (the last) or LW (the last from Monday to Friday)",
    "month": "1 to 12, or JAN to DEC",
    "day of week": "0 to 7, or SUN to SAT; FRI#1 is the first Friday, 5L the last",
}
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)
MAX_AFTER = 100  # datasets that one schedule follows


def instant(value: Any) -> datetime:
    """Return the instant of an aware datetime or of a text such as ``2026-12-31T18:00:00+01:00``.

    Raises: ValueError.
    """
    try:
        if isinstance(value, str) and _TIME.fullmatch(value):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime) and value.utcoffset() is not None:
            value.astimezone(UTC)
            return value
    except (ValueError, OverflowError):  # the 31st of February; the year 0
        pass
    form = "2026-12-31T18:00:00+01:00, or 2026-12-31T17:00:00Z"
    raise ValueError(f"expected a time with its offset from UTC, as {form}, not {_shown(value)}")


Instant = Annotated[
    datetime, BeforeValidator(instant), WithJsonSchema({"type": "string", "format": "date-time"})
]


@cache
def zone_of(name: str) -> tzinfo:
    """Return the time zone with this name. Raises: ValueError: there is none.

    Its rules are those of the package ``tzdata``, never those of the host: every coordinator of a
    release has the same.
    """
    zones = _zones()
    if zones.get(name) != name:
        near = [
            zones[match]
            for match in difflib.get_close_matches(name[:100].lower(), zones, n=5, cutoff=0.75)
        ]
        hint = f"; did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else ""
        raise ValueError(
            f"{shorten(name)} is no time zone; expected UTC, or a name of IANA such as "
            f"Europe/Berlin{hint}"
        )
    if name == "UTC":
        return UTC
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@cache
def _zones() -> dict[str, str]:
    """Return each zone by its name, and for hints by its name and place in lower case."""
    names = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    # Not EST or CET, which many take for the time of a place with its daylight saving.
    names = ["UTC", *sorted(name for name in names if "/" in name)]
    places = {name.lower().replace("_", " ").rpartition("/")[2]: name for name in names}
    return {**places, **{name.lower(): name for name in names}, **{name: name for name in names}}


class After(Strict):
    """Datasets of the warehouse whose new versions make a run."""

    any_of: Annotated[Listed[DatasetName], Field(min_length=1, max_length=MAX_AFTER)] | None = (
        Field(
            default=None,
            description=(
                "A new version of any of them makes a run; the short form is the list alone."
            ),
        )
    )
    all_of: Annotated[Listed[DatasetName], Field(min_length=1, max_length=MAX_AFTER)] | None = (
        Field(default=None, description="A run is made when each of them has a new version.")
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return {"any_of": value}
        if not isinstance(value, dict | After):
            raise ValueError(  # noqa: TRY004 - pydantic collects it
                f"expected a list of datasets, or all_of: with such a list, not {_shown(value)}"
            )
        return value

    @model_validator(mode="after")
    def _is_one(self) -> After:
        if (self.any_of is None) == (self.all_of is None):
            raise ValueError("expected a list of datasets, or all_of: with such a list")
        if twice := {name for name in self.datasets if self.datasets.count(name) > 1}:
            raise ValueError(f"{listed(sorted(twice))}: named twice; keep one")
        return self

    @property
    def datasets(self) -> tuple[str, ...]:
        return self.any_of or self.all_of or ()


class RunRetry(Strict):
    """How a failed run is tried again. The wait is ``backoff * 2**n`` up to ``max_backoff``."""

    max: int = Field(
        default=10,
        ge=0,
        le=1000,
        strict=True,
        description="Failures in a row that are tried again.",
    )
    backoff: Seconds = Field(
        default=10.0, description="Wait before the first retry; it doubles with each."
    )
    max_backoff: Seconds = Field(default=300.0, description="The longest wait before a retry.")


class ScheduleSpec(Strict):
    """When a job runs: by the clock, at intervals, after datasets, or by hand."""

    cron: str | None = Field(
        default=None,
        strict=True,
        max_length=200,
        description=(
            "Five fields: minute, hour, day of month, month, day of week; on the clock of zone."
        ),
    )
    zone: str | None = Field(
        default=None,
        strict=True,
        max_length=100,
        description="The time zone of cron, of what parameters get from the tick, and of the "
        "steps. Required with cron; left out: that of the fleet.",
    )
    every: Seconds | None = Field(
        default=None,
        description="The distance of the ticks, in whole seconds; counted from 1970-01-01T00:00Z.",
    )
    after: After | None = Field(
        default=None,
        description=(
            "Datasets: a new version of any of them makes a run; with all_of, of each of them."
        ),
    )
    only_if: Literal["arrived"] | None = Field(
        default=None,
        description="arrived: no run while nothing new has arrived for the streams of the job.",
    )
    overlap: Literal["skip", "wait", "allow"] = Field(
        default="skip", description="What becomes of a tick while the run before it is not over."
    )
    missed: Literal["latest", "all", "none"] = Field(
        default="latest", description="Which ticks are made up for after an outage."
    )
    missed_within: Seconds = Field(default=86400.0, description="Older ticks are not made up for.")
    retry: RunRetry = Field(default=RunRetry(), description="How a failed run is tried again.")
    sequential: bool = Field(
        default=False,
        strict=True,
        description=(
            "true: each run builds on the one before, where inputs: do not show it. Ticks "
            "then run in order."
        ),
    )
    on_failure: Literal["stop", "continue"] = Field(
        default="stop", description="What a backfill does after a tick whose retries are used up."
    )
    until: Instant | None = Field(
        default=None,
        description="No tick at this time or later, with its offset from UTC; left out: no end.",
    )
    keep_runs: int = Field(
        default=100, ge=1, le=10_000, strict=True, description="Ended runs that the store keeps."
    )
    jitter: Seconds = Field(
        default=0.0, description="Runs begin up to so much later; always the same for one schedule."
    )

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        if value is not None and (wrong := _wrong_cron(value)):
            raise ValueError(wrong)
        return value

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, value: str | None) -> str | None:
        if value is not None:
            zone_of(value)
        return value

    @field_validator("every")
    @classmethod
    def _is_distance(cls, value: float | None) -> float | None:
        if value is not None and (value < 1 or value != int(value)):
            raise ValueError(f"expected whole seconds, at least 1s, not {value:g}s")
        return value

    @model_validator(mode="after")
    def _fits(self) -> ScheduleSpec:
        triggers = [name for name in ("cron", "every", "after") if getattr(self, name) is not None]
        if len(triggers) > 1:
            raise ValueError(
                f"{' and '.join(triggers)}: a schedule has one trigger; keep one of them"
            )
        if self.cron is not None and self.zone is None:
            raise ValueError(
                "cron: has no zone; say in which time zone its hours are, as zone: Europe/Berlin, "
                "or UTC"
            )
        if self.every is not None and self.jitter >= self.every:
            raise ValueError(
                "the jitter is not below every:, so that a run would begin after the next tick"
            )
        return self

    @property
    def time_zone(self) -> tzinfo:
        return zone_of(self.zone or "UTC")


def _shown(value: Any) -> str:
    return shorten(str(value)) if isinstance(value, datetime) else describe(value)


def _wrong_cron(text: str) -> str:
    """Return why ``text`` is not a cron expression with a tick; empty if it is."""
    parts = text.split()
    if len(parts) != 5:
        hint = "; for seconds, use every:" if len(parts) == 6 else ""
        if written := _NICKNAMES.get(text.strip().lower()):
            hint = f"; write {written}"
        names = ", ".join(_CRON_FIELDS)
        return f"expected five fields ({names}), such as 30 2 * * *, not {shorten(text)}{hint}"
    for at, (field, expected) in enumerate(_CRON_FIELDS.items()):
        if not _comes(" ".join(part if i == at else "*" for i, part in enumerate(parts))):
            return (
                f"{shorten(parts[at])} is no {field}; expected {expected}, or a list, range or "
                "step of these"
            )
    return "" if _comes(text) else f"{shorten(text)} never comes: there is no such day in 50 years"


def _comes(text: str) -> bool:
    try:
        return next(CronSim(text, datetime(2000, 1, 1)), None) is not None
    except CronSimError:
        return False


SEQUENTIAL = "sequential: true"  # no dataset can have this name


def builds_on(
    schedule: ScheduleSpec | None, every: Sequence[GroupSpec], published: Collection[str]
) -> str:
    """Return why each run of a job depends on the previous one; empty if it does not.

    The reason is a dataset that the job reads and publishes, or ``sequential: true``. An input with
    a version reads the same rows in every run.
    """
    for group in every:
        for group_input in group.inputs.values():
            if (
                isinstance(group_input, DatasetInput)
                and group_input.version is None
                and group_input.dataset in published
            ):
                return group_input.dataset
    return SEQUENTIAL if schedule is not None and schedule.sequential else ""


def schedule_problems(
    schedule: ScheduleSpec | None, every: Sequence[GroupSpec], published: Collection[str]
) -> Iterator[SpecProblem]:
    """Find parts of a schedule that do not fit its job.

    Args:
        published: the outputs that the job publishes.
    """
    if schedule is None:
        return
    if schedule.after is not None:
        yield from _own_datasets(schedule.after, published)
    if schedule.only_if == "arrived" and not any(group.streams for group in every):
        message = "no group of the job reads a stream, so nothing can arrive"
        yield SpecProblem(message, ("schedule", "only_if"))
    if why := builds_on(schedule, every, published):
        builds = f"each run builds on the one before ({why})"
        if schedule.overlap == "allow":
            message = f"{builds}, so runs cannot overlap; write wait or skip"
            yield SpecProblem(message, ("schedule", "overlap"))
        if schedule.on_failure == "continue":
            message = f"{builds}, so no tick can be passed over; remove it"
            yield SpecProblem(message, ("schedule", "on_failure"))


def _own_datasets(after: After, published: Collection[str]) -> Iterator[SpecProblem]:
    keys: Loc = () if after.any_of else ("all_of",)
    for i, name in enumerate(after.datasets):
        if name in published:
            message = f"the job publishes {name!r} itself, so each run would start the next"
            yield SpecProblem(message, ("schedule", "after", *keys, i))
