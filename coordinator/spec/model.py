"""The job spec: what a user submits, checked as a whole before it is stored.

A ``JobSpec`` comes from a file, a text, a dict (``JobSpec.model_validate``) or its parts
(``JobSpec(...)``). One `SpecError` has all of its problems.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from unstuck.coordinator.spec.checks.output_checks import published_outputs
from unstuck.coordinator.spec.checks.spec_checks import problems_in, problems_of_graph
from unstuck.coordinator.spec.defaults import Defaults
from unstuck.coordinator.spec.job_params import fill, unbound_ticks, values_of, wrong_declarations
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.notify_spec import (
    MAX_RULES,
    ConditionWithValue,
    NotifyRule,
    notify_problems,
)
from unstuck.coordinator.spec.problems import Loc, SpecError, SpecProblem, Written
from unstuck.coordinator.spec.schedule_spec import (
    After,
    RunRetry,
    ScheduleSpec,
    builds_on,
    schedule_problems,
    zone_of,
)
from unstuck.coordinator.spec.sql_files import groups_with_sql
from unstuck.tasks.duration import Timeout
from unstuck.tasks.protocol.texts import Packer
from unstuck.tasks.spec.fields import (
    MAX_COUNT,
    DatasetName,
    Description,
    Listed,
    ParamName,
    Strict,
)
from unstuck.tasks.spec.group import ForkFrom, GroupSpec, Step
from unstuck.tasks.spec.inputs import DatasetInput, StreamInput
from unstuck.tasks.spec.join import JoinRule
from unstuck.tasks.spec.outputs import Expect, Fresh, OutputSpec, Quality, RowCount
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.time_zone import other_zone

__all__ = ["JobSpec", "SpecError", "SpecProblem"]

JobName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]


class JobSpec(Strict):
    """One job: its groups, and the settings of all groups."""

    name: JobName = Field(description="Name of the job.")
    description: Description | None = Field(default=None, description="Its purpose, for people.")
    schedule: ScheduleSpec | None = Field(
        default=None, description="When it runs again; left out: only when submitted."
    )
    zone: StrictStr | None = Field(
        default=None,
        description=(
            "The time zone of its steps; left out: that of its schedule, else that of the fleet."
        ),
    )
    params: dict[ParamName, Any] = Field(
        default_factory=dict,
        description="Parameters of every step: defaults, or declarations with a type.",
    )
    defaults: Defaults = Field(
        default=Defaults(), description="Defaults for the fields that a group leaves out."
    )
    max_parallel: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        strict=True,
        description="Attempts that may run at once; left out: no bound.",
    )
    priority: Literal["high", "normal", "low"] = Field(
        default="normal",
        description=(
            "Share of busy runners: high gets four turns for one of normal, normal four "
            "for one of low."
        ),
    )
    mixed: bool = Field(
        default=False,
        strict=True,
        description=(
            "Workers of any Spark and Python version may take part; left out: those with the "
            "minor versions of its first claim."
        ),
    )
    timeout: Timeout | None = Field(
        default=None,
        description="Time limit from the first claimed attempt to publishing; left out: no limit.",
    )
    on_failure: Literal["cancel_others", "finish_others"] = Field(
        default="cancel_others",
        description="Whether the other groups are canceled when one has failed for good.",
    )
    publish: Listed[DatasetName] | None = Field(
        default=None,
        description=(
            "Outputs that become visible; left out: those of groups that no other group needs."
        ),
    )
    outputs: dict[DatasetName, OutputSpec] = Field(
        default_factory=dict,
        description="How single outputs are published; one that is not named is replaced.",
    )
    notify: Listed[NotifyRule] = Field(
        default=(),
        max_length=MAX_RULES,
        description="Who is notified of which changes, beside the rules of the fleet.",
    )
    groups: Listed[GroupSpec] = Field(
        min_length=1, description="The groups of the job; a fork counts as one."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _all_at_once(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        try:
            spec = handler(data)
        except ValidationError as error:
            problems = problems_of(error, data, _MODELS)
            named = {problem.loc for problem in problems}
            params = data.get("params") if isinstance(data, dict) else None
            more = [*problems_of_graph(data), *wrong_declarations(params)]
            raise SpecError([*problems, *(p for p in more if p.loc not in named)]) from None
        # STORED: the whole was checked before it was stored, and a coordinator loads it again and
        # again.
        if info.context:
            return spec
        problems = problems_in(
            spec.groups, spec.params, spec.publish, spec.defaults.conf, spec.outputs
        )
        problems += schedule_problems(spec.schedule, spec.groups, spec.published)
        problems += notify_problems(spec.notify, spec.schedule, spec.groups)
        problems += unbound_ticks(spec.schedule, spec.params)
        problems += _zone_problems(spec)
        if problems:
            raise SpecError(problems)
        return spec

    @classmethod
    def of(
        cls,
        spec: Spec,
        params: Mapping[str, Any],
        *,
        scheduled: bool = False,
    ) -> JobSpec:
        """Return the spec of a job, a mapping, or the path of a YAML or JSON file, with ``params``.

        Args:
            scheduled: as for `from_file`.

        Raises: SpecError.

        >>> JobSpec.of({"name": "sales", "groups": [{"name": "load", "needs": ["nobody"]}]}, {})
        Traceback (most recent call last):
          ...
        unstuck...SpecError: groups[0].needs[0]: unknown group 'nobody'; groups: load
        """
        if isinstance(spec, JobSpec):
            return spec.with_params(params, scheduled=scheduled)
        if isinstance(spec, Mapping):
            return cls.from_values(dict(spec), params, scheduled=scheduled)
        if isinstance(spec, str | os.PathLike):
            return cls.from_file(spec, params, scheduled=scheduled)
        return spec.spec(params, scheduled=scheduled)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        scheduled: bool = False,
    ) -> JobSpec:
        """Read the spec in a YAML or JSON file, and the SQL files beside it.

        Args:
            params: the values of a submit, as for `with_params`; None: they are not known yet.
            scheduled: a schedule runs it, so parameters that are bound to a tick need no value.

        Raises:
            SpecError: the file cannot be read, or the spec or ``params`` are wrong.
        """
        from unstuck.coordinator.spec.text import read_file

        return cls.from_written(read_file(path), params, scheduled=scheduled)

    @classmethod
    def from_text(
        cls,
        text: str,
        source: str = "<text>",
        folder: Path | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        scheduled: bool = False,
    ) -> JobSpec:
        """Read the spec in ``text``, YAML or JSON.

        Args:
            source: the name of the text in problems; a name that ends in ``.json`` requires JSON.
            folder: the folder of ``sql_file:``; None: ``sql_file:`` is refused.
            params, scheduled: as for `from_file`.

        Raises:
            SpecError: with every problem, each with its line and column.
        """
        from unstuck.coordinator.spec.text import written_in

        return cls.from_written(written_in(text, source, folder), params, scheduled=scheduled)

    @classmethod
    def from_written(
        cls, written: Written, params: Mapping[str, Any] | None = None, *, scheduled: bool = False
    ) -> JobSpec:
        """Return the spec of a text that was read, with the places of its problems.

        Args:
            params, scheduled: as for `from_file`.

        Raises: SpecError.
        """
        try:
            spec = cls.from_values(written.values, params, scheduled=scheduled).with_sql_files(
                written.folder
            )
        except SpecError as error:
            named = {problem.loc for problem in written.problems}
            located = [
                written.located(problem) for problem in error.problems if problem.loc not in named
            ]
            raise SpecError([*written.problems, *located]) from None
        if written.problems:
            raise SpecError(written.problems)
        return spec

    @classmethod
    def from_values(
        cls, data: Any, params: Mapping[str, Any] | None, *, scheduled: bool = False
    ) -> JobSpec:
        """Return the spec in plain values, such as the mapping in a file.

        Args:
            params, scheduled: as for `from_file`.

        Raises:
            SpecError: with every problem of the spec and of ``params``.
        """
        problems: list[SpecProblem] = []
        written = data.get("params", {}) if isinstance(data, dict) else None
        if params is not None and isinstance(written, Mapping):
            filled, problems = fill(written, params, scheduled=scheduled)
            data = {**data, "params": filled} if params else data
        try:
            spec = cls.model_validate(data)
        except SpecError as error:
            raise SpecError([*problems, *error.problems]) from None
        if problems:
            raise SpecError(problems)
        return spec

    def with_params(self, params: Mapping[str, Any], *, scheduled: bool = False) -> JobSpec:
        """Return this spec for a submit, with these values of its parameters.

        Text is read as in a spec (``2014`` is a number, ``[1, 2]`` a list), but the value of a text
        parameter stays text. Other values are used unchanged; a date is written in its ISO form.

        Raises:
            SpecError: an unknown name, a value that cannot be read or has another type, or no value
                for a required parameter.
        """
        written = {name: getattr(self, name) for name in self.model_fields_set}
        if not params and not fill(self.params, {}, scheduled=scheduled)[1]:
            return self
        return JobSpec.from_values(written, params, scheduled=scheduled)

    @property
    def values(self) -> dict[str, Any]:
        """The value of each parameter; None for a declared one without a value."""
        return values_of(self.params)

    @property
    def builds_on(self) -> str:
        """Why each run of the job depends on the previous one; see `schedule_spec.builds_on`."""
        return builds_on(self.schedule, self.groups, self.published)

    @property
    def published(self) -> Collection[str]:
        """The declared outputs that become visible; Python steps may write others."""
        return published_outputs(self.groups, self.publish)

    def check_versions(self, oldest: int, newest: int) -> None:
        """Check whether the versions that ``inputs:`` name can be read. Raises: SpecError."""
        readable = "it is empty"
        if newest:
            readable = f"the oldest that can be read is {max(oldest, 1)}, the newest {newest}"
        problems: list[SpecProblem] = []
        for i, group in enumerate(self.groups):
            for name, group_input in group.inputs.items():
                version = group_input.version if isinstance(group_input, DatasetInput) else None
                if version and not oldest <= version <= newest:
                    message = f"the warehouse has no version {version}; {readable}"
                    problems.append(SpecProblem(message, ("groups", i, "inputs", name)))
        if problems:
            raise SpecError(problems)

    @property
    def steps_zone(self) -> str:
        """The time zone of its steps; empty: that of the fleet."""
        if self.zone or self.schedule is None:
            return self.zone or ""
        return self.schedule.zone or ""

    def in_zone(self, zone: str) -> JobSpec:
        """Return this spec with ``zone``, that of the fleet, for a schedule without a zone."""
        if self.schedule is None or self.schedule.zone is not None:
            return self
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"zone": zone})})

    def check_zone(self, zone: str) -> None:
        """Check that no ``conf:`` sets another time zone than that of the steps. Raises: SpecError.

        Args:
            zone: that of the fleet.
        """
        whose, zone = ("this job", self.steps_zone) if self.steps_zone else ("this fleet", zone)
        places: list[tuple[Loc, dict[str, str]]] = [(("defaults", "conf"), self.defaults.conf)]
        places += [(("groups", i, "conf"), group.conf) for i, group in enumerate(self.groups)]
        wrongs = [(other_zone(conf, zone, whose), loc) for loc, conf in places]
        if problems := [SpecProblem(wrong, loc) for wrong, loc in wrongs if wrong]:
            raise SpecError(problems)

    def with_sql_files(self, folder: Path | None) -> JobSpec:
        """Return this spec with the text of every ``sql_file:`` in place of its name.

        Raises:
            SpecError: as for `groups_with_sql`.
        """
        groups = groups_with_sql(self.groups, self.params, folder)
        return self if groups == self.groups else self.model_copy(update={"groups": groups})

    def to_json(self) -> str:
        """Return the spec as canonical JSON, which `model_validate` reads.

        It has what was written and no defaults. So a release with more fields stores the same text,
        and ``worker_losses: 3`` in a group still wins over another number under ``defaults:``.

        Raises:
            SpecError: a ``sql_file:`` was not read yet; see `with_sql_files`.
        """
        return _canonical(self.dumped())

    def packed(self) -> tuple[str, dict[str, str]]:
        """Return the stored form, with references to long texts, and these texts by digest.

        Raises:
            SpecError: as for `to_json`.
        """
        packer = Packer()
        return _canonical(packer.pack(self.dumped())), packer.texts

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what is stored; it does not depend on layout or comments."""
        return fingerprint_of(self.packed()[0])

    def dumped(self) -> dict[str, Any]:
        """Return the values of `to_json`."""
        return self.with_sql_files(None).model_dump(mode="json", by_alias=True, exclude_unset=True)


def _zone_problems(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.zone is None:
        return
    if spec.schedule is not None:
        message = "a job with a schedule uses the zone of its schedule; write zone: under schedule:"
        yield SpecProblem(message, ("zone",))
    try:
        zone_of(spec.zone)
    except ValueError as error:
        yield SpecProblem(str(error), ("zone",))


class MakesSpec(Protocol):
    """A job that is written in Python, as `Job` is."""

    def spec(
        self, params: Mapping[str, Any] | None = None, *, scheduled: bool = False
    ) -> JobSpec: ...


Spec = JobSpec | Mapping[str, Any] | str | os.PathLike[str] | MakesSpec


# The model at each path of a spec, list indexes left out; "*" is any key.
_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): JobSpec,
    ("schedule",): ScheduleSpec,
    ("schedule", "after"): After,
    ("schedule", "retry"): RunRetry,
    ("notify",): NotifyRule,
    ("notify", "on"): ConditionWithValue,
    ("defaults",): Defaults,
    ("defaults", "retry"): RetryPolicy,
    ("outputs", "*"): OutputSpec,
    ("outputs", "*", "quality"): Quality,
    ("outputs", "*", "expect"): Expect,
    ("outputs", "*", "expect", "rows"): RowCount,
    ("outputs", "*", "expect", "fresh"): Fresh,
    ("groups",): GroupSpec,
    ("groups", "inputs", "*"): DatasetInput,
    ("groups", "inputs", "*", "StreamInput"): StreamInput,  # as pydantic names it
    ("groups", "inputs", "*", "KafkaInput"): KafkaInput,
    ("groups", "join"): JoinRule,
    ("groups", "retry"): RetryPolicy,
    ("groups", "steps"): Step,
    ("groups", "for_each", "*"): ForkFrom,
}

MODELS_OF_GROUP = {path[1:]: model for path, model in _MODELS.items() if path[:1] == ("groups",)}


def fingerprint_of(packed: str) -> str:
    """Return the fingerprint of the spec that is stored as ``packed``."""
    return hashlib.sha256(packed.encode()).hexdigest()


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
