"""The job spec: what a user submits, checked as a whole before any of it is stored.

A ``JobSpec`` is a value that comes from a file, a text, a dict (``JobSpec.model_validate``) or its
parts (``JobSpec(...)``). All its problems come together, as one `SpecError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache
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
from unstuck.coordinator.spec.checks.sql import sql_problems, wrong_statement
from unstuck.coordinator.spec.job_params import fill, unbound_ticks, values_of, wrong_declarations
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.notify_spec import (
    MAX_RULES,
    ConditionWithValue,
    NotifyRule,
    notify_problems,
)
from unstuck.coordinator.spec.problems import Loc, Problem, SpecError, Written, shorten
from unstuck.coordinator.spec.schedule_spec import (
    After,
    RunRetry,
    ScheduleSpec,
    builds_on,
    schedule_problems,
    zone_of,
)
from unstuck.tasks.duration import Timeout
from unstuck.tasks.plain_text import plain_text
from unstuck.tasks.protocol.texts import Packer
from unstuck.tasks.spec.fields import (
    MAX_COUNT,
    DatasetName,
    Description,
    Listed,
    ParamName,
    PoolName,
    QueueName,
    Strict,
)
from unstuck.tasks.spec.group import ForkFrom, GroupSpec, Step
from unstuck.tasks.spec.inputs import DatasetInput, StreamInput
from unstuck.tasks.spec.join import JoinRule
from unstuck.tasks.spec.outputs import Expect, Fresh, OutputSpec, Quality, RowCount
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.sql_tokens import MAX_SQL
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.time_zone import other_zone

__all__ = ["Defaults", "JobSpec", "Problem", "SpecError"]

JobName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]


class Defaults(Strict):
    """Defaults of every group that says nothing itself.

    ``conf`` is merged key by key, the group's wins.
    """

    retry: RetryPolicy | None = Field(
        default=None, description="For groups without a retry of their own."
    )
    timeout: Timeout | None = Field(
        default=None, description="For groups without a timeout of their own."
    )
    queue_timeout: Timeout | None = Field(
        default=None, description="For groups without a queue_timeout of their own."
    )
    worker_losses: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        strict=True,
        description="For groups without worker_losses of their own.",
    )
    queue: QueueName | None = Field(
        default=None, description="For groups without a queue of their own."
    )
    pool: PoolName | None = Field(
        default=None, description="For groups without a pool of their own."
    )
    conf: dict[StrictStr, StrictStr] = Field(
        default_factory=dict, description="Run-time Spark conf of every group."
    )


class JobSpec(Strict):
    """One job: its groups, and what holds for all of them."""

    name: JobName = Field(description="Name of the job.")
    description: Description | None = Field(default=None, description="What it is for, for people.")
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
        default=Defaults(), description="What holds for every group that says nothing itself."
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
            "Any Spark and Python may take part; left out: the minor versions of its "
            "first "
            "claim alone."
        ),
    )
    timeout: Timeout | None = Field(
        default=None,
        description="Time limit from the first claimed attempt to publishing; left out: no limit.",
    )
    on_failure: Literal["cancel_others", "finish_others"] = Field(
        default="cancel_others",
        description="What becomes of the other groups when one has failed for good.",
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
        description="Who is told of which changes, beside the rules of the fleet.",
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
        """A spec, a job, a mapping, or the path of a YAML or JSON file, with ``params``. Raises:
        SpecError.

        Args:
            scheduled: as for `from_file`.

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
        """The spec in a YAML or JSON file. SQL files are read beside it.

        Args:
            params: the values that a submit gives, as for `with_params`; None: they are not known
                yet.
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
        """The spec in ``text``, YAML or JSON.

        Args:
            source: what problems call the text; one that ends in ``.json`` must be JSON.
            folder: where ``sql_file:`` is looked for; None: it is refused.
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
        """The spec that somebody wrote. ``params``, ``scheduled``: as for `from_file`. Raises:
        SpecError.
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
        """The spec in plain values (a mapping, as a file has it), with ``params`` and ``scheduled``
        as for `from_file`.

        Raises:
            SpecError: with every problem of the spec and of ``params``.
        """
        problems: list[Problem] = []
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
        """This spec as it is submitted: with these values for some of its parameters.

        Text is read as a spec would read it (``2014`` is a number, ``[1, 2]`` a list), except that
        a parameter which is text stays text. Other values are taken as they are; a date is written
        in its ISO form.

        Raises:
            SpecError: a name that the spec does not have, a value that cannot be read or is of
                another type, or no value for a required parameter.
        """
        written = {name: getattr(self, name) for name in self.model_fields_set}
        if not params and not fill(self.params, {}, scheduled=scheduled)[1]:
            return self
        return JobSpec.from_values(written, params, scheduled=scheduled)

    @property
    def values(self) -> dict[str, Any]:
        """The value of each parameter; None for one that is declared and has none."""
        return values_of(self.params)

    @property
    def builds_on(self) -> str:
        """Why each run of the job builds on the one before, as `schedule_spec.builds_on`; empty if
        none does.
        """
        return builds_on(self.schedule, self.groups, self.published)

    @property
    def published(self) -> Collection[str]:
        """The declared outputs that become visible; steps in Python may write others."""
        return published_outputs(self.groups, self.publish)

    def check_versions(self, oldest: int, newest: int) -> None:
        """Look whether the versions that ``inputs:`` name can be read. Raises: SpecError."""
        readable = (
            f"the oldest that can be read is {max(oldest, 1)}, the newest {newest}"
            if newest
            else "it is empty"
        )
        problems = [
            Problem(
                f"the warehouse has no version {dataset_input.version}; {readable}",
                ("groups", i, "inputs", name),
            )
            for i, group in enumerate(self.groups)
            for name, dataset_input in group.inputs.items()
            if isinstance(dataset_input, DatasetInput)
            and dataset_input.version
            and not oldest <= dataset_input.version <= newest
        ]
        if problems:
            raise SpecError(problems)

    @property
    def steps_zone(self) -> str:
        """The time zone of its steps; empty: that of the fleet."""
        return self.zone or (self.schedule.zone if self.schedule is not None else None) or ""

    def in_zone(self, zone: str) -> JobSpec:
        """Return this spec with ``zone``, that of the fleet, for the days of a schedule that has
        none of its own.
        """
        if self.schedule is None or self.schedule.zone is not None:
            return self
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"zone": zone})})

    def check_zone(self, zone: str) -> None:
        """Look whether a ``conf:`` would make another time zone than that of its steps. Raises:
        SpecError.

        ``zone``: that of the fleet.
        """
        whose, zone = ("this job", self.steps_zone) if self.steps_zone else ("this fleet", zone)
        places: list[tuple[Loc, dict[str, str]]] = [(("defaults", "conf"), self.defaults.conf)]
        places += [(("groups", i, "conf"), group.conf) for i, group in enumerate(self.groups)]
        if problems := [
            Problem(why, loc) for loc, conf in places if (why := other_zone(conf, zone, whose))
        ]:
            raise SpecError(problems)

    def with_sql_files(self, folder: Path | None) -> JobSpec:
        """This spec with the text of every ``sql_file:`` in place of its name.

        Raises:
            SpecError: a file is missing, empty, above 1 MB, outside ``folder``, or ``folder`` is
                None.
        """
        problems: list[Problem] = []
        groups: list[GroupSpec] = []
        read = cache(
            lambda name: read_sql_file(name, folder)
        )  # a file that many steps name is one text
        for i, group in enumerate(self.groups):
            steps = list(group.steps)
            for j, step in enumerate(steps):
                if step.sql_file is not None:
                    try:
                        sql = read(step.sql_file)
                    except ValueError as error:
                        problems.append(Problem(str(error), ("groups", i, "steps", j, "sql_file")))
                        continue
                    written = {
                        name: getattr(step, name) for name in step.model_fields_set - {"sql_file"}
                    }
                    steps[j] = Step.model_validate({**written, "sql": sql})
            inlined = tuple(steps)
            groups.append(
                group if inlined == group.steps else group.model_copy(update={"steps": inlined})
            )
        if (
            groups != list(self.groups) and not problems
        ):  # a statement of a file is checked as one of the spec is
            for problem in sql_problems(
                groups, {group.name: group for group in groups}, self.params
            ):
                problems.append(dataclasses.replace(problem, loc=(*problem.loc[:-1], "sql_file")))
        if problems:
            raise SpecError(problems)
        return (
            self
            if tuple(groups) == self.groups
            else self.model_copy(update={"groups": tuple(groups)})
        )

    def to_json(self) -> str:
        """The spec as canonical JSON: what `model_validate` reads back.

        Holds what was written and no defaults, so that a release which knows more fields stores the
        same text, and
        ``worker_losses: 3`` in a group still wins over another number under ``defaults:``.

        Raises:
            SpecError: a ``sql_file:`` was not read yet; see `with_sql_files`.
        """
        return _canonical(self.dumped())

    def packed(self) -> tuple[str, dict[str, str]]:
        """The stored form: as `to_json`, with references in place of long texts; and these texts by
        digest.

        Raises:
            SpecError: as for `to_json`.
        """
        packer = Packer()
        return _canonical(packer.pack(self.dumped())), packer.texts

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what is stored: equal for specs that say the same, whatever their layout or
        comments.
        """
        return fingerprint_of(self.packed()[0])

    def dumped(self) -> dict[str, Any]:
        """The values of `to_json`; a text that several places have is one value."""
        return self.with_sql_files(None).model_dump(mode="json", by_alias=True, exclude_unset=True)


def _zone_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.zone is None:
        return
    if spec.schedule is not None:
        message = (
            "the days of a job with a schedule are those of its schedule; write zone: under "
            "schedule:"
        )
        yield Problem(message, ("zone",))
    try:
        zone_of(spec.zone)
    except ValueError as error:
        yield Problem(str(error), ("zone",))


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
    """The fingerprint of the spec that is stored as ``packed``."""
    return hashlib.sha256(packed.encode()).hexdigest()


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read_sql_file(name: str, folder: Path | None) -> str:
    """The text of an SQL file. Raises: ValueError."""
    if folder is None:
        raise ValueError(
            f"{shorten(name)} cannot be found: this spec was not read from a file; write sql: "
            "instead"
        )
    # The name itself is checked, and links are followed: the author of a spec may not be allowed to
    # read other files, while the owner of the folder made its links.
    inside = os.path.normpath(name)
    if os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir or "\0" in name:
        raise ValueError(
            f"{shorten(name)} is outside the folder of the spec; put the file beside the spec"
        )
    path = folder / inside
    shown = shorten(str(path), 200)
    try:
        if not path.is_file():
            raise ValueError(f"no such file: {shown}")
        with path.open("rb") as file:
            data = file.read(MAX_SQL + 1)
        text = plain_text(data.decode())
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{shown} is not UTF-8 text") from None
    if len(data) > MAX_SQL:
        raise ValueError(f"{shown} is larger than 1 MB")
    if not text.strip():
        raise ValueError(f"{shown} is empty")
    if wrong := wrong_statement(text):
        raise ValueError(f"{shown}: {wrong}")
    return text
