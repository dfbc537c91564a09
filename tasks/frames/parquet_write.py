"""Write Spark frames as Parquet files that other readers understand."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from unstuck.tasks.frames.refusals import ValueRefused
from unstuck.tasks.frames.spark import VOID, hadoop_uri, on_connect, plan_of
from unstuck.tasks.frames.text_bytes import invalid_bytes, refused_column, with_checked_text

log = logging.getLogger(__name__)
# By Spark's own defaults, or by a group's conf, timestamps would lose their zone, their
# microseconds or whole centuries in other readers. Dates of before 1582 would move by days.
_WRITE_CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_OBSERVED_WITHIN = "10 seconds"  # usually it is there at once


def write_parquet(
    frame: Any, uri: str, writer: Callable[[Any], Any] = lambda frame: frame.write
) -> int | None:
    """Write the rows of a Spark ``frame`` into the folder ``uri``, and replace earlier files.

    Args:
        writer: makes the ``DataFrameWriter`` of a frame.

    Returns:
        The rows that its tasks wrote, as they counted them; None if Spark does not say. The driver
        commits whatever it then finds in the folder, and reports no error where that is less.

    Raises:
        ValueRefused: a text, CSV or JSON file that the frame reads is not UTF-8.
    """
    for key, value in _WRITE_CONF.items():
        # Not put back, since another thread of the step may be writing an output too.
        frame.sparkSession.conf.set(key, value)
    frame = _typed(frame)
    plan = plan_of(frame)
    checked = with_checked_text(frame, plan)
    try:
        return _write(checked, uri, writer)
    except Exception as error:
        column = refused_column(error)
        if not column:
            raise
        if place := invalid_bytes(frame):
            raise ValueRefused(
                f"the column {column} has text of a file that is not UTF-8: {place}. In "
                "a step: spark.read.option('encoding', 'ISO-8859-1') for CSV and JSON files, "
                "decode(cast(value AS BINARY), 'ISO-8859-1') for spark.read.text"
            ) from error
        # The bytes are valid: the file itself contains U+FFFD. Write again without that check.
        unchecked = with_checked_text(frame, plan, replaced=False)
    return _write(unchecked, uri, writer)


def _write(frame: Any, uri: str, writer: Callable[[Any], Any]) -> int | None:
    if on_connect(frame.sparkSession):
        writer(frame).mode("overwrite").parquet(hadoop_uri(uri))
        return None
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    writer(frame.observe(counted, count(lit(1)).alias("rows"))).mode("overwrite").parquet(
        hadoop_uri(uri)
    )
    return _observed_rows(frame, counted)


def _typed(frame: Any) -> Any:
    """Cast columns without a type to text, since Polars cannot read what Spark writes for them."""
    from pyspark.sql.types import StructType

    schema = frame.schema.json()
    typed = VOID.sub(r'"\1":"string"', schema)
    return frame if typed == schema else frame.to(StructType.fromJson(json.loads(typed)))


def _observed_rows(frame: Any, counted: Any) -> int | None:
    """The observation may come late, and Spark drops observations when it has too many."""
    from py4j.protocol import Py4JJavaError

    concurrent = frame.sparkSession._jvm.scala.concurrent
    try:
        concurrent.Await.ready(
            counted._jo.future(), concurrent.duration.Duration.apply(_OBSERVED_WITHIN)
        )
    except Py4JJavaError as error:
        log.warning(
            "Spark did not say how many rows it wrote; they are not compared with what stands: %s",
            error,
        )
        return None
    rows = counted.get.get("rows")
    return None if rows is None else int(rows)
