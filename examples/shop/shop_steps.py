"""The steps of shop.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from unstuck import StepContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def clean(spark: None, ctx: StepContext) -> pa.Table:
    """The orders that have an amount."""
    arrived = ctx.input("arrived")
    orders = arrived.filter(pc.is_valid(arrived["amount"]))
    ctx.result("dropped", len(arrived) - len(orders))
    return orders


def by_region(spark: SparkSession, ctx: StepContext, region: str) -> DataFrame:
    """The orders of one region, counted."""
    query = (
        "SELECT :region AS region, count(*) AS orders, sum(amount) AS amount FROM sales WHERE "
        "region = :region"
    )
    return spark.sql(query, args={"region": region})
