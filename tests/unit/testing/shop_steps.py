"""The steps of a shop, for jobs that tests run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def load(spark: None, ctx: Any, day: str) -> pa.Table:
    events = ctx.input("events")
    ctx.result("rows", events.num_rows)
    return events.append_column("day", pa.array([day] * len(events), pa.string()))


def of_region(spark: None, ctx: Any, region: int) -> pa.Table:
    orders = ctx.input("orders")
    return orders.filter(pc.equal(orders["region"], region))


def days(spark: None, ctx: Any) -> pa.Table:
    """The day of each visit as Arrow, pandas and the process have it."""
    visits = ctx.input("visits")
    frame = visits.to_pandas()
    return pa.table(
        {
            "id": visits["id"],
            "by_arrow": pc.strftime(visits["at"], format="%Y-%m-%d"),
            "by_pandas": frame["at"].dt.strftime("%Y-%m-%d"),
            "by_process": [
                str(datetime.fromtimestamp(at.timestamp()).date()) for at in frame["at"]
            ],
        }
    )


def total(spark: None, ctx: Any) -> pa.Table:
    return pa.table({"orders": [ctx.input("by_region").num_rows]})


def counted(spark: Any, ctx: Any, good: int) -> pa.Table:
    """``good`` good rows, and a bad one."""
    return pa.table({"n": [0, *range(1, good + 1)]})
