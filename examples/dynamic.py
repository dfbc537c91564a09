"""The steps of the dynamic fork (``dynamic.yaml``): one group per carrier that the data turns out
to hold.

Plain Python with Arrow (``spark: false``): no JVM is started, inputs are Arrow tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from examples.nycflights import read_table

if TYPE_CHECKING:
    from unstuck import StepContext


def clean(spark: None, ctx: StepContext) -> pa.Table:
    """Carrier, destination and arrival delay of every flight that arrived."""
    return read_table("flights", ["carrier", "dest", "arr_delay"]).drop_null()


def favourite(spark: None, ctx: StepContext, carrier: str) -> pa.Table:
    """One row: where ``carrier`` flies most, how often, and its mean arrival delay there in
    minutes.
    """
    flights = ctx.input("clean")
    own = flights.filter(pc.equal(flights["carrier"], carrier))
    routes = own.group_by("dest").aggregate([([], "count_all"), ("arr_delay", "mean")])
    # Ties go to the first in the alphabet, so that a second attempt writes the same row.
    (most,) = (
        routes.sort_by([("count_all", "descending"), ("dest", "ascending")]).slice(0, 1).to_pylist()
    )
    ctx.result("favourite", most["dest"])
    return pa.table(
        {
            "carrier": [carrier],
            "dest": [most["dest"]],
            "flights": [most["count_all"]],
            "mean_arr_delay": [most["arr_delay_mean"]],
        }
    )


def ranking(spark: None, ctx: StepContext) -> pa.Table:
    """All carriers, the busiest route first."""
    routes = ctx.input("favourites").sort_by([("flights", "descending"), ("carrier", "ascending")])
    for row in routes.to_pylist():
        ctx.log.info(
            "%(carrier)s flies most to %(dest)s: %(flights)d times, %(mean_arr_delay).1f min late",
            row,
        )
    return routes
