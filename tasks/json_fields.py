"""Types of fields that JSON writes otherwise than Python has them."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, PlainSerializer, WithJsonSchema

# Of types that most processes import and never read: a validator takes up to 15 ms to build.
DEFERRED = ConfigDict(defer_build=True)


def iso(at: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC, with Z; None for 0 and None."""
    if not at:
        return None
    utc = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return f"{utc.isoformat(timespec='milliseconds')[:-6]}Z"


def _or_null(schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, {"type": "null"}]}, mode="serialization")


_AS_ISO = PlainSerializer(iso), _or_null({"type": "string", "format": "date-time"})
Time = Annotated[float, *_AS_ISO]
"""Seconds since the epoch. In JSON an ISO time, or null for 0."""
OptionalTime = Annotated[float | None, *_AS_ISO]
Word = Annotated[str, PlainSerializer(lambda text: text or None), _or_null({"type": "string"})]
"""A text that is null in JSON if it is empty."""
