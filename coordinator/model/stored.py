"""Converts a record to values for JSON in Redis. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, cast


def stored_fields(value: Any) -> Any:
    """Return ``value`` as values for JSON; a dataclass becomes an object without default fields.

    Unlike a dump by pydantic, this ignores the annotations for users.
    """
    if is_dataclass(value):
        kept = {}
        for name, default in _defaults(cast(Hashable, type(value))).items():
            field_value = getattr(value, name)
            if field_value != default:
                kept[name] = stored_fields(field_value)
        return kept
    if isinstance(value, Mapping):
        return {name: stored_fields(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [stored_fields(element) for element in value]
    return value


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {item.name: _default(item) for item in fields(kind)}


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()
