"""Steps whose rows break rules, for tests on real workers."""

from __future__ import annotations

import datetime
from contextlib import nullcontext, suppress
from typing import Any

import pyarrow as pa

from unstuck import Unrecoverable


def flights(
    spark: None, ctx: Any, rows: int = 100, bad: int = 0, name: str = "", columns: str = ""
) -> Any:
    """``rows`` flights of today, the last ``bad`` of which have no distance, and every second of
    these no carrier.
    """
    bad_ones = range(rows - bad, rows)
    table = {
        "id": pa.array(range(rows), pa.int64()),
        "distance": pa.array([0 if n in bad_ones else 100 + n for n in range(rows)], pa.int64()),
        "carrier": [None if n in bad_ones and n % 2 else "AA" for n in range(rows)],
        "day": pa.array([datetime.datetime.now(datetime.UTC).date()] * rows, pa.date32()),
    }
    for column in filter(None, columns.split(",")):
        table[column] = pa.array(range(rows), pa.int64())
    made = pa.table(table)
    if not name:
        return made
    return ctx.output(name).write(made) and None


def three(spark: None, ctx: Any, bad: int, caught: bool) -> None:
    """Three outputs; the one in the middle has ``bad`` rows. ``caught``: the step goes on whatever
    is said of it.
    """
    for name, its in (("first", 0), ("middle", bad), ("last", 0)):
        with suppress(Unrecoverable) if caught else nullcontext():
            flights(spark, ctx, bad=its, name=name)


def count(spark: None, ctx: Any) -> Any:
    """The rows of a group, by its name, and its rejected rows."""
    return pa.table(
        {"good": [len(ctx.input("load"))], "bad": [len(ctx.input("flights__rejected"))]}
    )
