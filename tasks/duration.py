"""Parses durations as users write them (``90``, ``"15s"``, ``"1h30m"``) into seconds.

``Seconds`` is the type of every duration in specs and settings, so that the type names the unit;
``Timeout`` is a duration that cannot be zero.
"""

from __future__ import annotations

import datetime
import re
import time
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
# Each unit once at most, the largest first. Without flags or named groups, since the JSON schema
# holds it too.
_PATTERN = "(?=[0-9])" + "".join(f"(?:({_NUMBER}){unit})?" for unit in _UNITS)
_WHOLE = re.compile(_PATTERN)
_PLAIN = re.compile(_NUMBER)
SHORTEST = 0.001
LONGEST = 36500 * 86400.0  # so that a time that is so far ahead can still be written as a date
_EXPECTED = "expected a duration such as 15s, 10m, 1h30m or 7d"


def parse_duration(value: Any) -> float:
    """Parse seconds, or text such as ``500ms``, ``15s``, ``1h30m`` or ``7d``.

    Raises:
        ValueError: the text is not a duration; or it is negative, above 100 years, or below a
            millisecond and not zero.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        # pydantic turns a ValueError, not a TypeError, into a problem of the field.
        raise ValueError(f"{_EXPECTED}, not {type(value).__name__} {_shown(value)}")  # noqa: TRY004
    seconds = _in_text(value) if isinstance(value, str) else value
    if not (seconds == 0 or SHORTEST <= seconds <= LONGEST):
        raise ValueError(
            f"expected a duration of zero, or from 1ms to 36500d (100 years), not {_shown(value)}"
        )
    return float(seconds)


def _in_text(text: str) -> float:
    """Parse a duration. Raises: ValueError."""
    word = text.strip().lower()
    if len(word) <= 100:  # longer is none, and slow to read as a number
        if match := _WHOLE.fullmatch(word):
            return sum(
                float(number or 0) * unit
                for number, unit in zip(match.groups(), _UNITS.values(), strict=True)
            )
        if _PLAIN.fullmatch(word):
            return float(word)
    raise ValueError(f"{_EXPECTED}, not {_shown(text)}")


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # more digits than Python is willing to write out
        return "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def format_duration(seconds: float) -> str:
    """Format ``seconds`` in a short form: ``0.4s``, ``12s``, ``3m05s``, ``2h10m``."""
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
                {"type": "number", "minimum": 0, "maximum": LONGEST},
                {"type": "string", "pattern": rf"^\s*({_PATTERN}|{_NUMBER})\s*$"},
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


def since_time(text: str) -> float:
    """Return seconds since the epoch for ``2h`` (ago) or an ISO time (local by default).

    Raises: ValueError: it is neither.
    """
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a duration (2h, 7d) nor an ISO time (2013-12-31T12:00)"
        ) from None
