"""Steps that bring noon of a day in July into frames, by every way that Python and Spark have."""

from __future__ import annotations

import os
import time
from datetime import date, datetime
from typing import Any

NOON = datetime(2024, 7, 1, 12)


def in_spark(spark: Any, ctx: Any) -> Any:
    """One frame: how it was made, and the instant that it came to, with a filter by the naive
    datetime over all.
    """
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import functions as f

    @f.udf("timestamp")
    def plain(at: datetime) -> datetime:
        return datetime(at.year, at.month, at.day, at.hour)

    series = f.pandas_udf(
        lambda at: pd.to_datetime(at.dt.strftime("%Y-%m-%d %H:%M:%S")), "timestamp"
    )
    made = {
        "datetime": spark.createDataFrame([(NOON,)], "at timestamp"),
        "pandas": spark.createDataFrame(pd.DataFrame({"at": [pd.Timestamp(NOON)]})),
        "literal": spark.sql("SELECT TIMESTAMP '2024-07-01 12:00:00' AS at"),
        "text": spark.sql("SELECT CAST('2024-07-01 12:00:00' AS TIMESTAMP) AS at"),
        "ntz": spark.createDataFrame([(NOON,)], "at timestamp_ntz").select(
            f.col("at").cast("timestamp")
        ),
        "date": spark.createDataFrame([(date(2024, 7, 1),)], "day date").selectExpr(
            "day + INTERVAL 12 HOURS AS at"
        ),
        "parameter": spark.sql("SELECT :noon AS at", args={"noon": NOON}),
        "collected": spark.createDataFrame(
            [spark.sql("SELECT TIMESTAMP '2024-07-01 12:00:00' AS at").first()]
        ),
        "to_pandas": spark.createDataFrame(
            spark.sql("SELECT TIMESTAMP '2024-07-01 12:00:00' AS at").toPandas()
        ),
    }
    if hasattr(spark.range(1), "toArrow"):  # since Spark 4.0
        made["arrow"] = spark.createDataFrame(pa.table({"at": pa.array([NOON])}))
    whole = None
    for how, frame in made.items():
        one = frame.select(f.lit(how).alias("how"), f.col("at").cast("timestamp").alias("at"))
        whole = one if whole is None else whole.unionByName(one)
    whole = whole.filter(f.col("at") == NOON)
    noon = whole.filter("how = 'literal'")
    for how, udf in {"plain": plain, "series": series}.items():
        whole = whole.unionByName(noon.select(f.lit(how).alias("how"), udf("at").alias("at")))
    return whole


def clocks(spark: Any, ctx: Any) -> None:
    """The zone of all that has one: this process, its JVM, its session, and Python in a task."""
    from pyspark.sql import functions as f

    @f.udf("string")
    def of_task(_: Any) -> str:
        return f"{os.environ.get('TZ')} {datetime.fromtimestamp(0)}"

    ctx.result("task", spark.range(1).select(of_task("id")).first()[0])
    ctx.result("process", f"{os.environ.get('TZ')} {datetime.fromtimestamp(0)}")
    ctx.result("session", spark.conf.get("spark.sql.session.timeZone"))
    ctx.result("java", spark._jvm.java.util.TimeZone.getDefault().getID())
    ctx.result(
        "shown", spark.sql("SELECT CAST(TIMESTAMP '2024-07-01 12:00:00Z' AS STRING)").first()[0]
    )
    ctx.result(
        "day",
        spark.sql("SELECT CAST(to_date(TIMESTAMP '2026-03-01 23:30:00Z') AS STRING)").first()[0],
    )


def without_spark(spark: Any, ctx: Any) -> Any:
    """A time without a zone, one with a zone, and one that the clock of the process made of the
    first.
    """
    import pandas as pd

    ctx.result("process", f"{os.environ.get('TZ')} {time.strftime('%H:%M', time.localtime(0))}")
    seconds = NOON.timestamp()
    aware = {
        "aware": pd.Timestamp(NOON).tz_localize("UTC"),
        "by_process": pd.to_datetime(seconds, unit="s", utc=True),
    }
    return pd.DataFrame([{"naive": NOON, **aware}])


def goes_abroad(spark: Any, ctx: Any) -> None:
    """Leaves another zone in all that can have one."""
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark._jvm.java.util.TimeZone.setDefault(
        spark._jvm.java.util.TimeZone.getTimeZone("Asia/Tokyo")
    )
