"""A small query.

On the path of Spark workers, of the plain script and of spark-submit as ``query_steps``.
"""

from __future__ import annotations

import sys
from typing import Any


def query(spark: Any, n: int) -> int:
    """The same few hundred rows for everybody, grouped and counted."""
    rows = spark.range(n, n + 500).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    return len(rows)


def group(spark: Any, ctx: Any, n: int) -> None:
    """One Spark group."""
    query(spark, n)


if __name__ == "__main__":  # spark-submit query_steps.py N
    from pyspark.sql import SparkSession

    query(SparkSession.builder.getOrCreate(), int(sys.argv[1]))
