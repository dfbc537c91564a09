"""Define the fields of specs and plans: names, plain values, and the base of all parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

# Names become keys, folders, views and Celery ids, so they are checked once, here.
GroupName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$")]
DatasetName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
ParamName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
QueueName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
PoolName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
JobPattern = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$")]
ColumnName = Annotated[str, Field(strict=True, min_length=1, max_length=255)]
Description = Annotated[str, Field(strict=True, min_length=1, max_length=2000)]
ErrorName = Annotated[
    str,
    Field(
        strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=200
    ),
]
FunctionName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
# Of anything that a spec counts: below 2**53, so that every reader of JSON holds it.
MAX_COUNT = 1_000_000_000


def _scalar(value: Any) -> Any:
    """Refuse a value that JSON cannot express.

    Pydantic would make text of bytes and a float of a Decimal.
    """
    if not isinstance(value, str | int | float | bool):
        raise PydanticCustomError("scalar_type", "expected text, a number or true or false")
    return value


def _listed(value: Any) -> Any:
    """Refuse a value that is no list or tuple.

    Pydantic would take a set, whose order differs between processes.
    """
    if not isinstance(value, list | tuple):
        raise PydanticKnownError("tuple_type")
    return value


def alternatives(names: Iterable[str]) -> str:
    """Return names as text, such as "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def check_choice(name: Any, names: Collection[str]) -> Any:
    """Return ``name`` if it is one of ``names``, as a ``Literal`` does."""
    if not isinstance(name, str) or name not in names:
        raise PydanticKnownError("literal_error", {"expected": alternatives(names)})
    return name


T = TypeVar("T")
Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]
# What a parameter of a fork may be for one member. The tags are no names, so a path of an error can
# do without them.
ForkItem = Annotated[
    Annotated[Scalar, Tag("a value")]
    | Annotated[dict[ParamName, Scalar], Field(min_length=1), Tag("a mapping")],
    Discriminator(lambda value: "a mapping" if isinstance(value, dict) else "a value"),
]
# The value of one member: of its parameter, or one for each of several parameters.
ForkValue = ForkItem | tuple[ForkItem, ...]
Listed = Annotated[tuple[T, ...], BeforeValidator(_listed)]
ErrorNames = Annotated[Listed[ErrorName], Field(min_length=1)]
# The context for parts that a release of Unstuck wrote, maybe another release.
STORED = {"stored": True}


class Strict(BaseModel):
    """Base of all parts of a spec: immutable, and an unknown field is an error.

    In the context ``STORED``, an unknown field with an empty value (false, zero, null or empty) is
    ignored: a later release has it, and nobody used it. A field with a value is an error there too,
    because it may change the result. So an empty value of a new field must mean the earlier
    behavior.
    """

    # A process imports all parts and reads few: see `json_fields.DEFERRED`.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _pass_over(cls, value: Any, info: ValidationInfo) -> Any:
        if not info.context or not isinstance(value, dict):
            return value
        names = _names_of(cls)
        return (
            value
            if value.keys() <= names
            else {name: content for name, content in value.items() if content or name in names}
        )


@cache
def _names_of(part: type[BaseModel]) -> frozenset[str | None]:
    """The names that a field of ``part`` may be written by."""
    return frozenset(
        name
        for field, field_info in part.model_fields.items()
        for name in (field, field_info.alias)
    )
