"""Reads the fields of a public type from a record that has them under the same names."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")


def from_record(kind: type[T], record: Any, **others: Any) -> T:
    """Return a ``kind`` with the values of ``others``, and every other field that ``record`` has.

    A field that neither has keeps its default.
    """
    names, read = _shared(cast(Hashable, kind), cast(Hashable, type(record)), tuple(others))
    return kind(**dict(zip(names, read(record), strict=True)), **others)


@cache
def _shared(
    kind: Any, record: Any, others: tuple[str, ...]
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    stored = {*dir(record), *getattr(record, "__dataclass_fields__", ())}
    names = tuple(item.name for item in fields(kind) if item.name in stored - {*others})
    return names, attrgetter(*names)
