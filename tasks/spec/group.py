"""The task group as a user writes it: ``GroupSpec``, with its steps and the values of its fork."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from pydantic import Field, StrictBool, StrictStr, field_validator, model_validator

from unstuck.tasks.duration import Timeout
from unstuck.tasks.plain_text import plain_text
from unstuck.tasks.protocol.keys import lane_of
from unstuck.tasks.spec.fields import (
    DatasetName,
    Description,
    ForkItem,
    ForkValue,
    FunctionName,
    GroupName,
    Listed,
    ParamName,
    PoolName,
    QueueName,
    Scalar,
    Strict,
)
from unstuck.tasks.spec.inputs import DatasetInput, GroupInput, StreamInput
from unstuck.tasks.spec.join import JoinRule
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.sql_tokens import MAX_SQL
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

MAX_FORK = 10_000
# Limit of a stored job. The values of its dynamic forks have the same limit again.
MAX_JOB_BYTES = 16 * 1024 * 1024
MAX_WHEN = 1000  # characters of a condition
# A step of ours: what the runner collects from an input is all that is to do.
READ_VALUES = "unstuck:read_values"


def fork_bytes(values: Iterable[Scalar]) -> int:
    """Return the size of the values of a fork as JSON, in bytes."""
    return sum(len(json.dumps(value)) for value in values)


def fork_key(value: Any) -> str:
    """Return a key that is equal for equal fork values."""
    return json.dumps(value, sort_keys=True)


def _check_fork_size(lists: Sequence[Sequence[Any]]) -> None:
    """Raises: ValueError: a list, or the product of several, exceeds `MAX_FORK`."""
    count = math.prod(map(len, lists))
    if max(count, *map(len, lists), 0) > MAX_FORK:
        what = "values" if len(lists) == 1 else "combinations"
        raise ValueError(f"for_each holds {count} {what}; at most {MAX_FORK} are allowed")


class Step(Strict):
    """A Python function ``fn(spark, ctx, **params)``, a SQL statement, or a compaction."""

    python: FunctionName | None = Field(
        default=None, description="The function to call, as module:function."
    )
    sql: str | None = Field(
        default=None,
        strict=True,
        min_length=1,
        max_length=MAX_SQL,
        description="One SQL statement of at most 1 MB; parameters are written as :name.",
    )
    sql_file: StrictStr | None = Field(
        default=None,
        description="A file beside the spec with one SQL statement; it is read at submit.",
    )
    compact: DatasetName | None = Field(
        default=None,
        description=(
            "A published dataset whose small files are written together; params: {target: MB}."
        ),
    )
    output: DatasetName | None = Field(
        default=None, description="Name of the output that the step writes."
    )
    params: dict[ParamName, Any] = Field(
        default_factory=dict,
        description="Parameters of this step; they win over those of the group and of the job.",
    )
    timeout: Timeout | None = Field(
        default=None, description="Time limit of this step; left out: no limit."
    )

    @field_validator("sql")
    @classmethod
    def _plain_sql(cls, sql: str | None) -> str | None:
        return None if sql is None else plain_text(sql)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [
            k for k in ("python", "sql", "sql_file", "compact") if getattr(self, k) is not None
        ]
        if len(kinds) != 1:
            raise ValueError("a step is exactly one of python:, sql:, sql_file: or compact:")
        if self.compact is not None:
            if self.output is not None:
                raise ValueError("compact: makes a version of its own, and has no output:")
            target = self.params.get("target", 1)
            if set(self.params) - {"target"} or type(target) is not int or target < 1:
                raise ValueError("compact: takes no params: but target, a whole number of MB")
        return self

    @property
    def label(self) -> str:
        """The name of the step for people."""
        if self.python:
            return self.python.rpartition(":")[2]
        if self.compact:
            return f"compact {self.compact}"
        return f"sql → {self.output}" if self.output else "sql"


class ForkFrom(Strict):
    """The source of fork values: a column of an earlier output (dynamic), or a list of params."""

    source: str | None = Field(
        default=None,
        alias="from",
        strict=True,
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*\.[^\x00-\x1f\x7f]{1,255}$",
        description=(
            "The column, as output.column, or input.column; the name of the column may "
            "hold blanks and dots."
        ),
    )
    param: ParamName | None = Field(
        default=None, description="A parameter of the job or the group that is a list."
    )
    distinct: StrictBool = Field(default=False, description="Take each value once.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) == (self.param is None):
            raise ValueError(
                "expected from: output.column, or param: the name of a parameter that is a list"
            )
        return self

    @property
    def output(self) -> str:
        return (self.source or "").partition(".")[0]

    @property
    def column(self) -> str:
        return (self.source or "").partition(".")[2]


def _is_column(values: Any) -> bool:
    """Return whether the values of a fork come from a column."""
    return isinstance(values, ForkFrom) and values.source is not None


class GroupSpec(Strict):
    """A task group of a job: its needs, its condition, its steps, and how failures are handled."""

    name: GroupName = Field(description="Name of the group, unique in the job.")
    description: Description | None = Field(default=None, description="What it does, for people.")
    needs: Listed[GroupName] = Field(
        default=(), description="Groups that come before this one, and whose outputs it reads."
    )
    join: JoinRule = Field(
        default=JoinRule(), description="When the group may go, by the states of what it needs."
    )
    when: str | None = Field(
        default=None,
        strict=True,
        min_length=1,
        max_length=MAX_WHEN,
        description=(
            "A condition; where it is false, the group is skipped once its join says that "
            "it may go."
        ),
    )
    for_each: dict[ParamName, Listed[ForkItem] | ForkFrom] | None = Field(
        default=None,
        description="Parameters and their values, each a scalar or a mapping of names to scalars: "
        "the group is forked, one member for each value or combination.",
    )
    queue: QueueName | None = Field(
        default=None, description="The Celery queue; left out: spark, or light with spark: false."
    )
    pool: PoolName | None = Field(
        default=None,
        description=(
            "The pool of which each attempt takes a slot, as `unstuck pool` sets; left out: none."
        ),
    )
    spark: StrictBool = Field(
        default=True, description="False: the steps are plain Python and start no JVM."
    )
    inputs: dict[DatasetName, GroupInput] = Field(
        default_factory=dict,
        description=(
            "Published datasets and streams that the steps read, each under a name of its own."
        ),
    )
    conf: dict[StrictStr, StrictStr] = Field(
        default_factory=dict, description="Run-time Spark conf of this group."
    )
    params: dict[ParamName, Any] = Field(
        default_factory=dict,
        description="Parameters of every step of the group; they win over those of the job.",
    )
    steps: Listed[Step] = Field(
        default=(), description="What one attempt runs, in this order; without steps: a join."
    )
    retry: RetryPolicy | None = Field(default=None, description="How failed steps are retried.")
    timeout: Timeout | None = Field(
        default=None,
        description="Time limit of an attempt, from its first step; left out: no limit.",
    )
    queue_timeout: Timeout | None = Field(
        default=None,
        description="A group that nobody claims for this long fails; left out: no limit.",
    )
    fresh: StrictBool = Field(default=False, description="Each attempt runs in a new process.")
    code_version: str | None = Field(
        default=None,
        strict=True,
        min_length=1,
        max_length=200,
        description="Replaces the source digest: a retry reuses work with the same value; "
        "left out: a digest of the packages that have the steps.",
    )
    optional: StrictBool = Field(
        default=False, description="A failure of the group does not fail the job."
    )
    worker_losses: int = Field(
        default=3,
        ge=1,
        le=1000,
        strict=True,
        description="Consecutive worker losses after which the group fails (POISON).",
    )

    @field_validator("for_each")
    @classmethod
    def _fork_is_valid(cls, value: Any) -> Any:
        if value is None:
            return value
        if not value:
            raise ValueError("for_each wants at least one parameter")
        lists = [values for values in value.values() if isinstance(values, tuple)]
        if len(value) > 1 and any(map(_is_column, value.values())):
            raise ValueError(
                "for_each takes values from a column for one parameter alone, not for several"
            )
        if any(len(set(map(fork_key, values))) < len(values) for values in lists):
            raise ValueError("for_each holds the same value twice")
        _check_fork_size(lists)
        return value

    @model_validator(mode="after")
    def _fork_has_steps(self) -> Self:
        if self.for_each is not None and not self.steps:
            raise ValueError(
                "for_each on a group without steps: there is nothing to run for each value"
            )
        return self

    @model_validator(mode="after")
    def _sql_has_spark(self) -> Self:
        if not self.spark and any(step.sql or step.sql_file for step in self.steps):
            raise ValueError("spark: false with a SQL step: SQL needs a Spark session")
        return self

    @model_validator(mode="after")
    def _compacts_one_dataset(self) -> Self:
        if sum(step.compact is not None for step in self.steps) > 1:
            raise ValueError(
                "two steps with compact: both would record the same results; use a group for each "
                "dataset"
            )
        return self

    @property
    def compacts(self) -> bool:
        """Whether a step compacts a dataset, so that a repeat compacts a newer version."""
        return any(step.compact for step in self.steps)

    @property
    def records_results(self) -> bool:
        """Whether the group may have results, from Python steps, compactions or streams."""
        return bool(self.streams) or any(step.python or step.compact for step in self.steps)

    @property
    def streams(self) -> dict[str, StreamInput | KafkaInput]:
        """The inputs that are streams."""
        return {
            name: source
            for name, source in self.inputs.items()
            if not isinstance(source, DatasetInput)
        }

    @property
    def is_join(self) -> bool:
        """Whether the group has no steps, and so never runs on a worker."""
        return not self.steps

    @property
    def fork_params(self) -> tuple[str, ...]:
        """The parameters that differ between members, by name. A stored spec keeps no key order."""
        return tuple(sorted(self.for_each or ()))

    @property
    def fork_values(self) -> tuple[ForkValue, ...] | None:
        """The value of each member of a fork over literal lists; None for any other group."""
        sources = [(self.for_each or {})[name] for name in self.fork_params]
        lists = [values for values in sources if isinstance(values, tuple)]
        if not sources or len(lists) < len(sources):
            return None
        return lists[0] if len(lists) == 1 else tuple(itertools.product(*lists))

    @property
    def fork_from(self) -> ForkFrom | None:
        """The source of the values of a dynamic fork; None for any other group."""
        sources = (self.for_each or {}).values()
        return next(
            (source for source in sources if isinstance(source, ForkFrom) and source.source), None
        )

    @property
    def packages(self) -> list[str]:
        """The top-level packages with the code of its steps."""
        return sorted(
            {step.python.partition(":")[0].partition(".")[0] for step in self.steps if step.python}
        )

    @property
    def queue_name(self) -> str:
        return self.queue or ("spark" if self.spark else "light")

    @property
    def lane(self) -> str:
        """The lane of its offers: its queue, or its queue and its pool."""
        return lane_of(self.queue_name, self.pool)
