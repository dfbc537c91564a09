"""Read published data without Spark and without a fleet: its files and its first rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from unstuck.tasks.settings import absolute
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import DataFile, are_named

Value = str | int | bool | datetime.date | None
Where = Mapping[str, Value | Sequence[Value]]


def published_files(
    warehouse: Warehouse | str,
    dataset: str,
    version: int | None = None,
    *,
    where: Where | None = None,
) -> list[str]:
    """Return the Parquet files of ``dataset`` as paths or URIs.

    DuckDB, Polars, pandas and pyarrow read them.

    Args:
        warehouse: the warehouse, its URI, or its path, which counts from the working folder.
        where: columns of its ``partition_by`` and the value, or values, of the partitions that are
            read.

    Raises:
        DatasetNotFound: no such dataset, or no such version; or it is a table, which the text
            names.
        ValueError: a column of ``where`` does not part the files; TypeError: no partition has a
            value of this type.

    >>> published_files(warehouse, "sales", where={"day": "2026-01-02"})
    ['...parquet']
    >>> published_files(warehouse, "sales", where={"day": "2026-01-03"})
    []
    """
    place = warehouse_at(warehouse)
    files = files_where(dataset, place.files_of(dataset, version).files, where)
    return [place.storage.uri(file.path) for file in files]


def warehouse_at(place: Warehouse | str) -> Warehouse:
    """The warehouse that a reader names."""
    return Warehouse(absolute(place)) if isinstance(place, str) else place


def head_rows(place: Warehouse, state: DatasetState, count: int) -> list[dict[str, Any]]:
    """Return the first ``count`` rows of a dataset at most, in the order of its files.

    The columns have the order of the dataset.

    Raises: ModuleNotFoundError: there is no Arrow.
    """
    import pyarrow.parquet as pq

    names = [column["name"] for column in json.loads(state.schema)["fields"]]
    rows: list[dict[str, Any]] = []
    for file in state.files:
        with place.storage.open(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(batch_size=count):
                rows += ({name: row.get(name) for name in names} for row in batch.to_pylist())
                if len(rows) >= count:
                    return rows[:count]
    return rows


def files_where(dataset: str, files: Sequence[DataFile], where: Where | None) -> Sequence[DataFile]:
    """Return the files in the partitions of ``where``; see `published_files`.

    Raises: ValueError, TypeError.
    """
    if not where:
        return files
    for file in files:
        if unknown := where.keys() - file.partition.keys():
            parted = f"by {', '.join(file.partition)}" if file.partition else "by no column"
            raise ValueError(
                f"where: the files of {dataset} are not parted by {', '.join(sorted(unknown))}, "
                f"but {parted}; read all of them, or publish with partition_by:"
            )
    partitions = {
        column: [
            _text(column, value)
            for value in (values if isinstance(values, list | tuple | set) else [values])
        ]
        for column, values in where.items()
    }
    is_named = are_named([partitions])
    return [file for file in files if is_named(file.partition)]


def _text(column: str, value: Any) -> str | None:
    """A value as partitions are named by it. Raises: TypeError: no partition has such a value."""
    if isinstance(value, datetime.datetime) or not isinstance(value, Value):
        expected = "text, a whole number, a date, true, false or None"
        raise TypeError(f"where: {column} is {expected}, not a {type(value).__name__}: {value!r}")
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def read_arrow(
    place: Warehouse,
    dataset: str,
    version: int | None = None,
    *,
    where: Where | None = None,
    to: Any = "arrow",
) -> Any:
    """The rows of a dataset with the columns that it lists; null where a file does not have one.

    Args:
        to: ``arrow``, ``pandas``, ``duckdb``, or a connection of DuckDB.

    Raises: as `published_files`; ModuleNotFoundError: the library is not installed; ValueError: no
    such ``to``.
    """
    if to not in ("arrow", "pandas", "duckdb") and not hasattr(to, "from_arrow"):
        kinds = "arrow, pandas, duckdb, a connection of DuckDB or a session of Spark"
        raise ValueError(f"to: expected {kinds}, not {to!r}")
    rows = _rows(place, dataset, version, where)
    if to == "pandas":
        import pandas as pd

        return rows.to_pandas(types_mapper=pd.ArrowDtype)
    if to == "arrow":
        return rows
    if to != "duckdb":
        return to.from_arrow(rows)
    import duckdb

    return duckdb.from_arrow(rows)


def _rows(place: Warehouse, dataset: str, version: int | None, where: Where | None) -> Any:
    """Return an Arrow table. Raises: as `read_arrow`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    state = place.files_of(dataset, version)
    names = [column["name"] for column in json.loads(state.schema)["fields"]]
    files = files_where(dataset, state.files, where)
    # Where no partition fits, the types are those of the others.
    tables = []
    for file in files or state.files[:1]:
        with place.storage.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            tables.append(parquet.read() if files else parquet.schema_arrow.empty_table())
    whole = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    nulls = pa.nulls(len(whole))
    present = dict(zip(whole.column_names, whole.columns, strict=True))
    return pa.table({name: present.get(name, nulls) for name in names})
