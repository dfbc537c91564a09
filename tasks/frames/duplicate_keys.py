"""Find values of key columns that several rows share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.spark import sql_error
from unstuck.tasks.spec.types import quoted


def repeated_keys(
    session: Any, schema: str, files: Mapping[str, int], columns: Sequence[str], some: int
) -> tuple[int, list[tuple[Any, ...]]]:
    """Count the values of ``columns`` that several rows share.

    Returns also ``some`` of them with their number of rows.

    Raises: OutputInvalid: the values of a column cannot be compared.
    """
    from pyspark.sql.functions import col, count, lit

    frame = read_parquet(session, [(schema, files)])
    keys = [col(quoted(column)).alias(str(number)) for number, column in enumerate(columns)]
    try:
        counted = frame.groupBy(*keys).agg(count(lit(1)).alias("rows")).filter("rows > 1")
        examples = [tuple(row) for row in counted.limit(some).collect()]
    except Exception as error:
        if (what := sql_error(error)) is None:
            raise
        raise OutputInvalid(
            f"expect.unique: {', '.join(columns)} cannot be compared: {what}"
        ) from error
    return (counted.count() if len(examples) == some else len(examples)), examples
