"""The clone that a demo runs from, and the published rows of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


def published_rows(warehouse: str, dataset: str) -> list[dict[str, Any]]:
    """Read a dataset as any reader would: from the Parquet files that the warehouse log names."""
    import pyarrow.parquet as pq

    from unstuck.tasks.errors import DatasetNotFound
    from unstuck.tasks.warehouse.published import published_files

    try:
        paths = published_files(warehouse, dataset)
    except DatasetNotFound:
        return []
    return [row for path in paths for row in pq.read_table(path).to_pylist()]
