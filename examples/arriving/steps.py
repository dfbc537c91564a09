"""The steps of the load of files that arrive (``departures.yaml``) and of its report, in plain
Python with Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from examples.nycflights import read_table

if TYPE_CHECKING:
    from unstuck import StepContext

LATE_AFTER = 15.0  # minutes


def weather(spark: None, ctx: StepContext) -> pa.Table:
    """The weather by airport and hour."""
    return read_table("weather", ["origin", "time_hour", "wind_speed", "precip", "visib"])


def departures(spark: None, ctx: StepContext) -> pa.Table:
    """The flights that have arrived since the last run, each with the weather of its airport and
    hour.
    """
    return ctx.input("flights").join(
        ctx.input("weather"), ["origin", "time_hour"], join_type="left outer"
    )


def by_hour(spark: None, ctx: StepContext) -> pa.Table:
    """One row per hour: its flights, how many of them left late or never, and how much it
    rained.
    """
    departures = ctx.input("departures")
    late = pc.fill_null(pc.greater_equal(departures["dep_delay"], LATE_AFTER), False)
    marked = departures.append_column("late", late).append_column(
        "cancelled", pc.is_null(departures["dep_delay"])
    )
    found = marked.group_by("time_hour").aggregate(
        [
            ("flight", "count"),
            ("late", "sum"),
            ("cancelled", "sum"),
            ("dep_delay", "mean"),
            ("precip", "max"),
        ]
    )
    names = {"flight_count": "flights", "late_sum": "late", "cancelled_sum": "cancelled"}
    names |= {"dep_delay_mean": "mean_dep_delay", "precip_max": "precip"}
    return found.rename_columns([names.get(name, name) for name in found.column_names]).sort_by(
        "time_hour"
    )
