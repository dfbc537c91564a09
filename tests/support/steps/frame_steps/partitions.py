"""Steps whose rows belong to days: those of the day that is loaded, and some that came late."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64())])


def load(spark: Any, ctx: Any, day: str, rows: int, late: dict[str, int] | None = None) -> pa.Table:
    """``rows`` of ``day``, and of each day of ``late`` so many as it says."""
    days = [text for text, count in {day: rows, **(late or {})}.items() for _ in range(count)]
    columns = [[datetime.date.fromisoformat(text) for text in days], list(range(len(days)))]
    return pa.table(columns, schema=SCHEMA)
