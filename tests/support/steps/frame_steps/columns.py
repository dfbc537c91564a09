"""Steps that return frames with columns as a test asks for them, on real workers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa


def made(spark: None, ctx: Any, columns: dict[str, list[Any]], library: str = "pandas") -> Any:
    """A frame of these values, in the types that the library guesses."""
    return pd.DataFrame(columns) if library == "pandas" else pa.table(columns)


def member(spark: None, ctx: Any, one: str, members: dict[str, dict[str, list[Any]]]) -> Any:
    """The frame of one member of a fork."""
    return pd.DataFrame(members[one])


def member_of(spark: None, ctx: Any, one: Any) -> Any:
    """One row for the value of a fork."""
    return pa.table({"one": [one], "amount": [1]})


def total(spark: None, ctx: Any, name: str, column: str) -> Any:
    """The rows of an input, and the sum of a column of it."""
    table = ctx.input(name)
    values = table[column].to_pylist() if column in table.column_names else []
    return pa.table(
        {
            "rows": [len(table)],
            "sum": [sum(v for v in values if v is not None)],
            "n": [len(table.columns)],
        }
    )
