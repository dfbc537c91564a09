"""Copies what users may see of a record into a class that has these fields alone (pure)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def facts_of(kind: type[T], record: Any, **overrides: Any) -> T:
    """Return a ``kind`` with the fields of ``record``; ``overrides`` replace their values."""
    names = _names(cast(Hashable, kind))
    return kind(
        **{name: overrides[name] if name in overrides else getattr(record, name) for name in names}
    )


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
