"""Durations as people write them (``90``, ``"15s"``, ``"1h30m"``), held as seconds.

``Seconds`` is the type of every duration in specs and settings, so that the unit stands in the type; ``Timeout`` is one
that cannot be zero.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def parse_duration(value: Any) -> float:
    """Seconds in ``value``: a number of seconds, or text such as ``500ms``, ``15s``, ``1h30m``, ``7d``.

    Raises:
        ValueError: the text is not a duration, or is negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        # pydantic turns a ValueError, not a TypeError, into a problem of the field.
        raise ValueError("expected a duration such as 15s, 10m, 1h30m or 7d")  # noqa: TRY004
    if isinstance(value, str):
        text = value.strip().lower()
        if _WHOLE.fullmatch(text):
            return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"expected a duration such as 15s, 10m, 1h30m or 7d, not {value!r}") from None
    seconds = float(value)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"expected a duration of zero or more, not {value!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """``seconds`` in the shortest form a person reads at a glance: ``0.4s``, ``12s``, ``3m05s``, ``2h10m``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 172800:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^\s*((\d+(\.\d+)?(ms|s|m|h|d))+|\d+(\.\d+)?)\s*$"},
            ],
            "description": "A duration: seconds, or text such as 15s, 10m, 1h30m, 7d",
        }
    ),
]


def _above_zero(seconds: float) -> float:
    if not seconds:
        raise ValueError("a timeout of zero would end it before it began; leave it out for no end")
    return seconds


Timeout = Annotated[Seconds, AfterValidator(_above_zero)]
