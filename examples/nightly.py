"""The steps of the nightly load (``nightly.yaml``), in plain Python with Arrow."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from examples.nycflights import read_table

if TYPE_CHECKING:
    from unstuck import StepContext


def flights_of(spark: None, ctx: StepContext, day: str) -> pa.Table:
    """The flights that were to leave on ``day`` (``2013-01-31``), with that day as a date."""
    date = datetime.date.fromisoformat(day)
    flights = read_table("flights")
    wanted = pc.and_(pc.equal(flights["month"], date.month), pc.equal(flights["day"], date.day))
    found = flights.filter(pc.and_(wanted, pc.equal(flights["year"], date.year))).drop_columns(
        ["day"]
    )
    return found.append_column("day", pa.array([date] * len(found), pa.date32()))


def summary(spark: None, ctx: StepContext, day: str) -> pa.Table:
    """One row: how many flights this load found, and how many of them never left."""
    flights = ctx.input("flights_by_day")
    return pa.table(
        {
            "day": pa.array([datetime.date.fromisoformat(day)], pa.date32()),
            "flights": [len(flights)],
            "cancelled": [flights["dep_time"].null_count],
        }
    )
