"""Converts rows of a test, as mappings or frames of any library, and frames for the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from unstuck.tasks.frames.casts import cast_frame
from unstuck.tasks.frames.output import is_any_frame, table_of
from unstuck.tasks.frames.spark import empty_table, is_frame
from unstuck.tasks.spec.schemas import schema_of
from unstuck.tasks.spec.streams.stream_columns import declared

Kind = Literal["pandas", "arrow", "duckdb", "spark"]
Rows = Iterable[Mapping[str, Any]]


def frame_of(data: Any, schema: str | None = None, *, about: str = "rows") -> Any:
    """Return ``data`` unchanged if it is a Spark frame, else as an Arrow table of plain types.

    Args:
        data: rows as mappings, a frame of Spark, pandas or Arrow, or anything that hands out an
            Arrow stream (Polars, DuckDB).
        schema: the columns and their types in SQL, as ``id BIGINT, at TIMESTAMP``; None: those of
            the values. A column that a row lacks is null.
        about: names ``data`` in errors.

    Raises:
        TypeError: it is nothing of that, or a column has values of several types.
        ValueError: there are no rows, and so no columns; or the schema is invalid.
        OutputInvalid: a value does not fit the schema, or cannot be stored.
    """
    columns = None if schema is None else declared(schema)
    frame = data if is_any_frame(data) else _table(data, about)
    if frame is None:
        if columns is None:
            raise ValueError(
                f"{about} has no rows, and so no columns: give them, as schema='id BIGINT, name "
                "STRING'"
            )
        return empty_table(schema_of(columns))
    frame = frame if is_frame(frame) else table_of(frame)
    return frame if columns is None else cast_frame(frame, columns, fill=True)


def _table(data: Any, about: str) -> Any:
    """Return an Arrow table; None for no rows. Raises: TypeError, OutputInvalid."""
    import pyarrow as pa

    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    rows = (
        None
        if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable)
        else list(data)
    )
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(
            f"{about} is a list of rows, as [{{'id': 1}}], or a frame, not {type(data).__name__}"
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return None
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            raise TypeError(
                f"{about}: the values of the column {name} have no type in common: {error}"
            ) from error
    return pa.table(columns)


def rows_of(table: Any, order_by: str | Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table as mappings, in the order of ``order_by``, nulls last."""
    columns = [order_by] if isinstance(order_by, str) else order_by
    if columns:
        table = table.sort_by([(column, "ascending") for column in columns])
    return list(table.to_pylist())


def as_kind(table: Any, kind: Kind) -> Any:
    """Return an Arrow table as a frame of another library.

    Raises: ModuleNotFoundError; ValueError: ``kind`` is unknown.
    """
    if kind == "pandas":
        import pandas as pd

        return table.to_pandas(types_mapper=pd.ArrowDtype)
    if kind == "duckdb":
        import duckdb

        return duckdb.from_arrow(table)
    if kind == "arrow":
        return table
    raise ValueError(f"a frame is of pandas, arrow, duckdb or spark, not {kind!r}")
