"""Copies what users may see of a record into a class that has these fields alone (pure)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def facts_of(kind: type[T], record: Any, **known: Any) -> T:
    """A value of ``kind``, whose fields are those of ``record``, but for what is ``known``
    better.
    """
    names = _names(cast(Hashable, kind))
    return kind(**{name: known[name] if name in known else getattr(record, name) for name in names})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))
