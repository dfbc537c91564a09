"""The clone that a demo runs from, and what its jobs have published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[4]


def published_rows(warehouse: str, dataset: str) -> list[dict[str, Any]]:
    """Rows of a dataset, read as anybody would read them: from plain Parquet files, named by the
    warehouse log.
    """
    import pyarrow.parquet as pq

    from unstuck.tasks.errors import DatasetNotFound
    from unstuck.tasks.warehouse.published import published_files

    try:
        paths = published_files(warehouse, dataset)
    except DatasetNotFound:
        return []
    return [row for path in paths for row in pq.read_table(path).to_pylist()]
