"""Steps with one small output. On the path of the workers as ``output_steps``."""

from __future__ import annotations

from typing import Any


def row(spark: None, ctx: Any, n: int) -> Any:
    """One row of a dataset."""
    import pyarrow as pa

    return pa.table({"n": [n], "name": [f"row {n}"]})
