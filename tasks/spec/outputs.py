"""Defines how outputs are published, and which conditions their rows must meet.

``OutputSpec`` is what a user writes, ``Checks`` the part of it that a runner needs to write the
output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from unstuck.tasks.duration import Timeout, parse_duration
from unstuck.tasks.spec.fields import MAX_COUNT, ColumnName, JobPattern, Listed, ParamName, Strict
from unstuck.tasks.spec.table_formats.registry import (
    PARQUET,
    TABLE_FORMATS,
    OutputFormat,
    formats_with,
)
from unstuck.tasks.spec.table_formats.table_format import TableFormat
from unstuck.tasks.spec.types import MAX_TYPE, parse_type

REJECTED = "__rejected"  # what the dataset of the rejected rows of an output adds to its name
REJECTED_BY = "_rejected_by"  # the column of it that names the rules which a row does not meet
# In the place of a rule: a file, or a message, of a stream that was put aside.
BAD_FILE, BAD_RECORD = "on_bad_file", "on_bad_record"
OUTSIDE = "outside partitions"  # stands there for ``partitions:``; no rule can have this name
# Whose rejected rows are counted together, and versions of the warehouse that are looked at for
# them.
MAX_RUNS = 1000
MAX_RULES = 50  # the file names of Spark hold so many
MAX_SHARED = 100  # names and patterns of one output

Condition = Annotated[str, Field(strict=True, min_length=1, max_length=4000)]


def _type(text: str) -> str:
    parse_type(text)
    return text


TypeName = Annotated[
    str, Field(strict=True, min_length=1, max_length=MAX_TYPE), AfterValidator(_type)
]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1)]
_RUNS = re.compile(r" *([0-9]{1,6}) +runs? *")
_PARAM = re.compile(r":([A-Za-z_]\w*)", re.ASCII)


def _partition_value(value: Any) -> Any:
    if value is not None and not isinstance(value, str | int | bool):
        raise PydanticCustomError(
            "partition_type", "expected text, a whole number, true, false or null"
        )
    return value


PartitionValue = Annotated[str | int | bool | None, BeforeValidator(_partition_value)]
PartitionValues = Annotated[
    tuple[PartitionValue, ...],
    Field(min_length=1),
    BeforeValidator(
        lambda value: value if isinstance(value, list | tuple) else (value,),
        json_schema_input_type=PartitionValue | list[PartitionValue],
    ),
]


def named_param(value: object) -> str | None:
    """Return the parameter that a value of ``partitions:`` names, as in ``:day``, or None."""
    match = _PARAM.fullmatch(value) if isinstance(value, str) else None
    return match and match[1]


def runs_or_time(text: str) -> tuple[int, float]:
    """How many runs, and how many seconds, ``over:`` counts at most. Raises: ValueError."""
    match = _RUNS.fullmatch(text)
    try:
        runs, seconds = (int(match[1]), math.inf) if match else (MAX_RUNS, parse_duration(text))
    except ValueError:
        runs = 0
    # A number alone could mean either.
    if not 1 <= runs <= MAX_RUNS or not seconds or text.strip().isdecimal():
        raise ValueError(
            f"expected 1 to {MAX_RUNS:,} runs, or a time, such as 20 runs or 1d, not {text!r}"
        )
    return runs, seconds


def _over(text: str) -> str:
    runs_or_time(text)
    return text


Over = Annotated[str, Field(strict=True, max_length=50), AfterValidator(_over)]


class Quality(Strict):
    """The rules that good rows satisfy, and how many rows may break them."""

    rules: Annotated[dict[ParamName, Condition], Field(min_length=1, max_length=MAX_RULES)] = Field(
        description=(
            "Conditions in SQL, by a name of yours; a good row meets all of them. Null "
            "counts as not met."
        )
    )
    max_rejected_ratio: Ratio = Field(
        default=0.0,
        description=(
            "Share of the rows of an attempt that may be rejected; 0: a single one fails it."
        ),
    )
    over: Over | None = Field(
        default=None,
        description="Runs or a time whose rows max_rejected_ratio counts together, such as 20 runs "
        "or 1d, for mode: append; left out: those of the attempt alone.",
    )

    @model_validator(mode="after")
    def _conditions(self) -> Self:
        if blank := [name for name, rule in self.rules.items() if not rule.strip()]:
            raise ValueError(
                f"the rule {blank[0]} is empty; write a condition, such as distance > 0"
            )
        return self


class RowCount(Strict):
    """How many rows an output may have."""

    min: int | None = Field(
        default=None, ge=0, le=MAX_COUNT, strict=True, description="At least so many rows."
    )
    max: int | None = Field(
        default=None, ge=0, le=MAX_COUNT, strict=True, description="At most so many rows."
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("rows wants min:, max: or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: {self.min:,} is more than max: {self.max:,}")
        return self


class Fresh(Strict):
    """How old the newest value of a column may be when the output is published."""

    column: ColumnName = Field(description="A column of dates or timestamps.")
    within: Timeout = Field(
        description="The newest value is at most so old when the output is published."
    )


class Expect(Strict):
    """Conditions on all rows of an output. They must hold before any row is published."""

    rows: RowCount | None = Field(default=None, description="How many rows there may be.")
    unique: Listed[ColumnName] = Field(
        default=(), description="Columns whose values together no two rows share."
    )
    fresh: Fresh | None = Field(
        default=None, description="How old the newest value of a column may be."
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.rows is None and not self.unique and self.fresh is None:
            raise ValueError("expect wants rows:, unique: or fresh:")
        if len(set(self.unique)) != len(self.unique):
            raise ValueError("unique names a column twice")
        return self


class Checks(Strict):
    """The columns, checks and measures of a runner when it writes an output.

    Limits that only the publisher checks are left out, because they do not affect finished work.

    Attributes:
        columns: names and types, in order; empty: those of the frame.
        fill: a declared column that the frame lacks is null.
    """

    columns: tuple[tuple[str, str], ...] = ()
    fill: bool = False
    quality: Quality | None = None
    unique: tuple[str, ...] = ()
    newest: str | None = None  # the column whose newest value is measured
    partitions: dict[str, tuple[PartitionValue, ...]] | None = None
    outside: Literal["fail", "reject", "append"] = "fail"

    @property
    def rejects(self) -> bool:
        """Whether rows may go to a dataset of their own."""
        return self.quality is not None or self.outside == "reject"

    def resolved(self, params: Mapping[str, Any]) -> Self:
        """Return these checks with the values of ``params`` in place of markers.

        Raises: ValueError: a parameter is missing.
        """
        if self.partitions is None:
            return self
        partitions = {
            column: tuple(element for value in values for element in _valued(column, value, params))
            for column, values in self.partitions.items()
        }
        return self.model_copy(update={"partitions": partitions})


def _valued(
    column: str, value: PartitionValue, params: Mapping[str, Any]
) -> tuple[PartitionValue, ...]:
    """Return the values for ``value`` of ``partitions:``; several for a list parameter."""
    if (name := named_param(value)) is None:
        return (value,)
    if (param := params.get(name)) is None:
        raise ValueError(f"partitions: {column} is :{name}, and this parameter has no value")
    values = tuple(param) if isinstance(param, list | tuple) else (param,)
    if odd := [
        element
        for element in values
        if element is not None and not isinstance(element, str | int | bool)
    ]:
        raise ValueError(
            f"partitions: {column} is :{name}, and {odd[0]!r} cannot be the value of a partition"
        )
    return values


class Publishing(Strict):
    """How an output is published, as far as its runner needs it to refuse rows early.

    It is not part of a fingerprint, because it does not change the work.
    """

    mode: Literal["replace", "append", "partition_overwrite", "merge"] = "replace"
    on_schema_change: Literal["fail", "evolve"] | None = None
    table: bool = False

    @property
    def takes_any(self) -> bool:
        """Whether any columns are allowed, because no published row stays."""
        return self.mode == "replace" and self.on_schema_change != "fail"


class OutputSpec(Strict):
    """How an output is published, how its files are written, and what must hold for its rows.

    The modes and their names are those of Spark's writers and of dbt's incremental models:
    ``replace`` (all rows), ``append``, ``partition_overwrite`` (the partitions that ``partitions:``
    names), and ``merge`` (the rows with the same keys).
    """

    mode: Literal["replace", "append", "partition_overwrite", "merge"] = Field(
        default="replace",
        description="What becomes of the rows that are published: replace all, append to them, "
        "replace those of the partitions that partitions: names, or replace the rows "
        "with the same keys.",
    )
    partition_by: Listed[ColumnName] = Field(
        default=(),
        description="Columns whose values part the rows: each file has the rows of one partition.",
    )
    partitions: Annotated[dict[ColumnName, PartitionValues], Field(min_length=1)] | None = Field(
        default=None,
        description="For partition_overwrite, which needs it: the partitions that the job "
        "replaces, by columns of partition_by: a value, a list of values, or :name for "
        "those of a parameter.",
    )
    outside: Literal["fail", "reject", "append"] | None = Field(
        default=None,
        description=(
            "What becomes of rows of other partitions than partitions: names; left out: "
            "they fail the attempt."
        ),
    )
    format: OutputFormat = Field(
        default=PARQUET,
        description="parquet: files that the warehouse log names; another: a table at path.",
    )
    path: str | None = Field(
        default=None,
        strict=True,
        min_length=2,
        max_length=2000,
        description="For a table format: the table; it is created if it is absent.",
    )
    keys: Listed[ColumnName] = Field(
        default=(),
        description=(
            "For merge: the columns that tell one row from another; none is null or there twice."
        ),
    )
    columns: dict[ColumnName, TypeName] = Field(
        default_factory=dict,
        description=(
            "Names and types of Spark SQL, in order: the frame is brought to them without "
            "loss, or refused."
        ),
    )
    quality: Quality | None = Field(
        default=None,
        description="Rules that good rows meet; rejected rows go to a dataset of their own.",
    )
    on_schema_change: Literal["fail", "evolve"] | None = Field(
        default=None,
        description="If the columns differ from the published ones: fail, or take new columns and "
        "leave out others (evolve); left out: fail where published rows stay. With "
        "columns:, evolve fills a missing one with nulls.",
    )
    expect: Expect | None = Field(
        default=None,
        description="What must hold of all rows of the output before any is published.",
    )
    shared_with: Listed[JobPattern] = Field(
        default=(),
        max_length=MAX_SHARED,
        description="Other jobs that may publish the dataset, which the job that published it "
        "first owns: names, or patterns such as load_*.",
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _from_pairs(cls, value: Any) -> Any:
        """A stored spec has pairs: a mapping would lose its order there."""
        if not isinstance(value, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in value
        ):
            return value
        names = {str(name): text for name, text in value}
        return names if len(names) == len(value) else value

    @field_serializer("columns")
    def _to_pairs(self, columns: dict[str, str]) -> list[tuple[str, str]]:
        return list(columns.items())

    @model_validator(mode="after")
    def _declared(self) -> Self:
        if len({name.lower() for name in self.columns}) < len(self.columns):
            raise ValueError(
                "columns names a column twice, for Spark, which compares names without regard to "
                "case"
            )
        named: dict[str, Iterable[str]] = {"partition_by": self.partition_by, "keys": self.keys}
        if self.expect is not None:
            named["expect.unique"] = self.expect.unique
            if self.expect.fresh is not None:
                named["expect.fresh"] = (self.expect.fresh.column,)
        for field, names in named.items() if self.columns else ():
            for strange in sorted({*names} - self.columns.keys()):
                raise ValueError(
                    f"{field} names {strange!r}, and columns: has {', '.join(self.columns)}"
                )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Check that the fields fit together. Raises: ValueError: the first that does not."""
        self._check_columns_are_distinct()
        self._check_partitions()
        self._check_quality()
        self._check_merge_keys()
        self._check_path()
        self._check_schema_change()
        return self

    def _check_columns_are_distinct(self) -> None:
        for field, columns in (("partition_by", self.partition_by), ("keys", self.keys)):
            if len(set(columns)) != len(columns):
                raise ValueError(f"{field} names a column twice")

    def _check_partitions(self) -> None:
        overwrites = self.mode == "partition_overwrite"
        named = self.partitions or {}
        column = next(iter(self.partition_by), "")
        other = next((name for name in named if name not in self.partition_by), "")
        wrong = {
            "mode: partition_overwrite wants partition_by: with the columns that part the rows": (
                overwrites and not column
            ),
            "mode: partition_overwrite wants partitions: with the partitions that the job "
            f'replaces, such as {{{column}: ":{column}"}} for those of a parameter': (
                overwrites and self.partitions is None
            ),
            "partitions: is for mode: partition_overwrite, and says which partitions it "
            "replaces": not overwrites and self.partitions is not None,
            f"partitions: names {other}, which is no column of partition_by:": other,
            "outside: wants partitions: with the partitions that the job replaces": (
                self.outside is not None and self.partitions is None
            ),
            "outside: append is for datasets of the warehouse: in a table, whose files others "
            "may rewrite, a retry cannot tell which rows it has appended; say fail or reject": (
                self.outside == "append" and self.format != PARQUET
            ),
        }
        if first := next(filter(wrong.get, wrong), None):
            raise ValueError(first)

    def _check_quality(self) -> None:
        if self.quality is not None and self.quality.over is not None and self.mode != "append":
            raise ValueError(
                "quality: over: wants mode: append, since it counts the runs that have appended "
                "rows"
            )

    def _check_merge_keys(self) -> None:
        if self.mode == "merge" and self.format == PARQUET:
            raise ValueError(f"mode: merge wants format: {formats_with(self.mode)}")
        if (self.mode == "merge") != bool(self.keys):
            wants = "mode: merge wants keys: with the columns that tell one row from another"
            raise ValueError(wants if self.mode == "merge" else "keys: are for mode: merge alone")

    def _check_path(self) -> None:
        if self.table_format is None:
            if self.path is not None:
                raise ValueError(f"path: is for format: {formats_with('replace')} alone")
            return
        if self.path is None:
            raise ValueError(f"format: {self.format} wants path: with the place of the table")
        self.table_format.place_of(self.path)
        if self.mode not in self.table_format.modes:
            raise ValueError(
                f"format: {self.format} has no mode: {self.mode}; it is for format: "
                f"{formats_with(self.mode)}"
            )

    def _check_schema_change(self) -> None:
        if self.format != PARQUET and self.on_schema_change is not None:
            raise ValueError(
                "on_schema_change is for datasets of the warehouse; a table keeps its columns"
            )
        if self.mode == "replace" and self.on_schema_change == "evolve" and not self.columns:
            raise ValueError(
                "on_schema_change: evolve with mode: replace: no published row stays, so any "
                "columns will do; leave it out, or say fail"
            )

    @property
    def table_format(self) -> TableFormat | None:
        """The format of the table; None for a dataset of the warehouse."""
        return TABLE_FORMATS.get(self.format)

    @property
    def table(self) -> str | None:
        """The place of the table in its normal form; None for a dataset of the warehouse."""
        if self.table_format is None or self.path is None:
            return None
        return self.table_format.place_of(self.path)

    @property
    def of_rejected_rows(self) -> OutputSpec:
        """How rejected rows are published: into the warehouse, in the same mode (merge: append)."""
        if self.format == PARQUET:
            return self
        mode = "append" if self.mode == "merge" else self.mode
        return self.model_copy(update={"format": PARQUET, "path": None, "keys": (), "mode": mode})

    @property
    def publishing(self) -> Publishing:
        """The part that a runner needs to refuse what cannot be published."""
        return Publishing(
            mode=self.mode, on_schema_change=self.on_schema_change, table=self.table is not None
        )

    @property
    def checks(self) -> Checks:
        """The part that a runner needs beside the partitions."""
        expect = self.expect or Expect.model_construct()
        return Checks(
            columns=tuple(self.columns.items()),
            fill=bool(self.columns) and self.on_schema_change == "evolve",
            quality=self.quality,
            unique=expect.unique,
            newest=None if expect.fresh is None else expect.fresh.column,
            partitions=self.partitions,
            outside=self.outside or "fail",
        )
