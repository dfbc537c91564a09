"""Parses ``notify:`` of a job spec: which targets are notified of which changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from unstuck.coordinator.spec.problems import Loc, SpecProblem, describe, listed, suggestion
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec, zone_of
from unstuck.tasks.duration import Seconds, parse_duration
from unstuck.tasks.spec.fields import Listed, Strict, T
from unstuck.tasks.spec.group import GroupSpec

PLAIN = ("failed", "halted", "finished", "recovered")
EXAMPLES = {
    "retrying_for": "15m",
    "running_for": "2h, or 3 x usual",
    "late": '"06:00", or "06:00 MON-FRI"',
    "behind": "10m",
    "waiting_for_worker": "5m",
}
_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_USUAL = re.compile(r"\s*([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*x\s*usual\s*")
_LATE = re.compile(
    r"([01][0-9]|2[0-3]):([0-5][0-9])(?: +(.+?))??(?: +(UTC|[A-Za-z_]+/[A-Za-z0-9_/+-]+))?",
    re.ASCII,
)
OF_SCHEDULES = ("late", "behind")  # conditions of what repeats
MAX_RULES = 50
MAX_TARGETS = 20  # of one rule


@dataclass(frozen=True, slots=True)
class Usual:
    """A duration as a multiple of the usual duration of earlier runs."""

    times: float


@dataclass(frozen=True, slots=True)
class Late:
    """A local time on some days of the week (Monday is 0) by which a run must have FINISHED.

    `late_of` reads it.
    """

    hour: int
    minute: int
    days: frozenset[int]
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a rule.

    Attributes:
        value: seconds, or what the condition takes; None for a condition without a value.
    """

    word: str
    value: float | Usual | Late | None = None

    @property
    def seconds(self) -> float:
        """Seconds of the condition; 0 if it has another value, or none."""
        return self.value if isinstance(self.value, float) else 0.0

    @property
    def key(self) -> str:
        """A text that identifies the condition."""
        if self.value is None:
            return self.word
        if isinstance(self.value, Late):
            days = "".join(str(day) for day in sorted(self.value.days))
            return (
                f"{self.word}:{self.value.hour:02}:{self.value.minute:02}/{days}{self.value.zone}"
            )
        return (
            f"{self.word}:{self.value.times:g}x"
            if isinstance(self.value, Usual)
            else f"{self.word}:{self.value:g}"
        )


def usual_of(value: Any) -> Usual | None:
    """Return the multiple in a text such as ``3 x usual``; None for another value.

    Raises:
        ValueError: the multiple is not above 1.
    """
    if not isinstance(value, str) or not (match := _USUAL.fullmatch(value)):
        return None
    if (times := float(match[1])) <= 1:
        raise ValueError(
            f"expected more than once the usual time, such as 3 x usual, not {describe(value)}"
        )
    return Usual(times)


def late_of(value: Any) -> Late:
    """Return the local time in a text such as ``06:00 MON-FRI,SUN Europe/Berlin``.

    The days and the zone may be left out.

    Raises: ValueError.
    """
    match = _LATE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 100 else None
    if not match:
        expected = (
            "a local time, days of the week if not all, and a time zone if it is another, "
            "such as 06:00 MON-FRI"
        )
        raise ValueError(f"expected {expected}, not {describe(value)}")
    if zone := match[4] or "":
        zone_of(zone)
    days = frozenset[int]().union(*(_days(part) for part in (match[3] or "MON-SUN").split(",")))
    return Late(int(match[1]), int(match[2]), days, zone)


def _days(part: str) -> frozenset[int]:
    """Return the days of ``FRI`` or ``FRI-MON``. Raises: ValueError."""
    days = [day.strip().upper() for day in part.split("-")]
    if len(days) > 2 or not set(days).issubset(_DAYS):
        raise ValueError(
            f"expected days of the week ({', '.join(_DAYS)}), such as MON-FRI or SAT,SUN, not "
            f"{describe(part)}"
        )
    ends = [_DAYS.index(day) for day in days]
    return frozenset((ends[0] + i) % 7 for i in range((ends[-1] - ends[0]) % 7 + 1))


def _running_time(value: Any) -> Any:
    """Read a running time. Raises: ValueError."""
    if usual_of(value):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or a multiple of the runs before, as 3 x usual") from None


def _late_text(value: Any) -> Any:
    late_of(value)
    return value


RunningTime = Annotated[
    float | str,
    BeforeValidator(_running_time),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "maxLength": 100}]}
    ),
]
LateText = Annotated[
    str, BeforeValidator(_late_text), WithJsonSchema({"type": "string", "maxLength": 100})
]


class ConditionWithValue(Strict):
    """A condition with its value; exactly one."""

    retrying_for: Seconds | None = Field(
        default=None, description="It fails and is tried again for so long."
    )
    running_for: RunningTime | None = Field(
        default=None,
        description="It runs for so long; or as many times the runs before, as 3 x usual.",
    )
    late: LateText | None = Field(
        default=None,
        description="No run has ended well by this local time, as 06:00 or 06:00 MON-FRI.",
    )
    behind: Seconds | None = Field(
        default=None, description="What arrived for its streams waits for so long."
    )
    waiting_for_worker: Seconds | None = Field(
        default=None, description="No worker takes an attempt for so long."
    )

    @model_validator(mode="after")
    def _is_one(self) -> ConditionWithValue:
        if len(self._written()) != 1:
            raise ValueError(
                f"expected one condition with its value, as {_example('retrying_for')}"
            )
        if self.condition.value == 0:
            raise ValueError("a time of zero is over before it begins; expected one such as 15m")
        return self

    def _written(self) -> dict[str, Any]:
        values = {word: getattr(self, word) for word in EXAMPLES}
        return {word: value for word, value in values.items() if value is not None}

    @property
    def condition(self) -> Condition:
        ((word, value),) = self._written().items()
        return Condition(
            word, late_of(value) if word == "late" else usual_of(value) or float(value)
        )


def _example(word: str) -> str:
    return f"{word}: {EXAMPLES[word]}"


def _written_condition(value: Any) -> Any:
    """Read a condition in its short form. Raises: ValueError."""
    if isinstance(value, ConditionWithValue):
        return value
    if isinstance(value, dict) and value:
        word = next(iter(value))
        if word in PLAIN:
            raise ValueError(f"{word} takes no value; write {word} alone")
        return value
    if isinstance(value, str) and value in EXAMPLES:
        raise ValueError(f"{value} needs a value, as {_example(value)}")
    if not isinstance(value, str) or value not in PLAIN:
        words = (*PLAIN, *EXAMPLES)
        near = suggestion(value, words) if isinstance(value, str) else ""
        raise ValueError(
            f"expected a condition, one of {listed(words)}, not {describe(value)}{near}"
        )
    return value


WrittenCondition = Annotated[
    Annotated[Literal["failed", "halted", "finished", "recovered"], Tag("word")]
    | Annotated[ConditionWithValue, Tag("value")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "value"),
    BeforeValidator(_written_condition),
]
OneOrMore = Annotated[
    Listed[T], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
TargetName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]


class NotifyRule(Strict):
    """One rule: which targets are notified of which changes."""

    on: Annotated[Listed[WrittenCondition], Field(min_length=1, max_length=20)] = Field(
        description="Conditions, such as failed, or retrying_for: 15m."
    )
    to: Annotated[OneOrMore[TargetName], Field(min_length=1, max_length=MAX_TARGETS)] = Field(
        description=(
            "The target, or a list of targets; a setting of the coordinators says where each is."
        )
    )

    @field_validator("on")
    @classmethod
    def _says_each_once(
        cls, value: tuple[str | ConditionWithValue, ...]
    ) -> tuple[str | ConditionWithValue, ...]:
        words = [
            condition if isinstance(condition, str) else condition.condition.word
            for condition in value
        ]
        if twice := sorted({word for word in words if words.count(word) > 1}):
            raise ValueError(
                f"{listed(twice)}: named twice in one rule; keep one, or make it a rule of its own"
            )
        if set(words) == {"recovered"}:
            raise ValueError(
                "recovered tells the end of a problem; name the problems beside it, as [failed, "
                "recovered]"
            )
        return value

    def of_run(self) -> NotifyRule | None:
        """Return the part of this rule for one run of a schedule; None if there is none."""
        on = tuple(
            condition
            for condition in self.on
            if isinstance(condition, str) or condition.condition.word not in OF_SCHEDULES
        )
        return self.model_copy(update={"on": on}) if set(on) - {"recovered"} else None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(
            Condition(condition) if isinstance(condition, str) else condition.condition
            for condition in self.on
        )


class FleetRule(NotifyRule):
    """A rule of the fleet, for all jobs and schedules whose name fits."""

    names: Annotated[Listed[str], Field(min_length=1, max_length=100)] = Field(
        default=("*",),
        description="Globs; the rule holds for jobs and schedules whose name fits one of them.",
    )


def notify_problems(
    rules: Sequence[NotifyRule], schedule: ScheduleSpec | None, groups: Sequence[GroupSpec]
) -> Iterator[SpecProblem]:
    """Find conditions that can never come true for the job that has these rules."""
    for i, rule in enumerate(rules):
        for j, condition in enumerate(rule.conditions):
            place: Loc = ("notify", i, "on", j, condition.word)
            if condition.word == "behind" and schedule is None:
                yield SpecProblem(
                    "behind is told of a schedule, and this job has no schedule:", place
                )
            elif condition.word == "behind" and not any(group.streams for group in groups):
                yield SpecProblem(
                    "no group of the job reads a stream, so nothing can be behind", place
                )
