"""Measures of an output as it is written: whether keys are unique, and the newest value of a
column.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from unstuck.tasks.errors import ExpectationFailed, OutputInvalid
from unstuck.tasks.frames.output import read_table
from unstuck.tasks.frames.spark import repeated_keys
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput, bytes_by_uri

_SHOWN = 5  # keys that are not unique


def check_unique(files: Files, staged: StagedOutput, columns: Sequence[str], session: Any) -> None:
    """Check that no two rows share their values in ``columns``; null counts as a value.

    Args:
        session: the Spark session of the group; None: Arrow groups the rows, in this process.

    Raises:
        ExpectationFailed: two rows do.
        OutputInvalid: there is no such column, or its values cannot be compared.
    """
    names = [field["name"] for field in json.loads(staged.schema)["fields"]]
    if missing := next((column for column in columns if column not in names), None):
        raise OutputInvalid(
            f"expect.unique: there is no column {missing!r}; the output has {', '.join(names)}"
        )
    if session is None:
        number, some = _repeated(files, staged, columns)
    else:
        number, some = repeated_keys(
            session, staged.schema, bytes_by_uri(files, staged.files), columns, _SHOWN
        )
    if number:
        keys = "; ".join(
            ", ".join(f"{column}={value}" for column, value in zip(columns, key, strict=True))
            + f" ({rows:,} rows)"
            for *key, rows in some
        )
        raise ExpectationFailed(
            f"expect.unique: {number:,} {'keys' if number > 1 else 'key'} of {', '.join(columns)} "
            f"{'stand' if number > 1 else 'stands'} in more than one row: "
            f"{keys}{'; …' if number > len(some) else ''}"
        )


def _repeated(
    files: Files, staged: StagedOutput, columns: Sequence[str]
) -> tuple[int, list[tuple[Any, ...]]]:
    """How many keys several rows share, and some of them with the number of their rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = [str(number) for number in range(len(columns))]
    table = read_table(files, [staged], list(columns)).select(list(columns)).rename_columns(keys)
    try:
        counted = table.group_by(keys).aggregate([([], "count_all")])
    except pa.ArrowException as error:
        raise OutputInvalid(
            f"expect.unique: {', '.join(columns)} cannot be compared: {error}"
        ) from error
    repeated = counted.filter(pc.greater(counted["count_all"], 1)).select([*keys, "count_all"])
    return len(repeated), [tuple(row.values()) for row in repeated.slice(0, _SHOWN).to_pylist()]


def newest_of(files: Files, staged: StagedOutput, column: str) -> float | None:
    """The newest date or timestamp of ``column``, in seconds since the epoch; None if there is
    none.

    A date counts as its midnight in UTC, a timestamp without a zone as one in UTC. What the files
    say of their columns is read; rows only where a file says nothing.

    Raises: OutputInvalid: there is no such column, or it has no dates or timestamps.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    types = {field["name"]: field["type"] for field in json.loads(staged.schema)["fields"]}
    if types.get(column) not in ("date", "timestamp", "timestamp_ntz"):
        what = f"is of type {json.dumps(types[column])}" if column in types else "is not there"
        raise OutputInvalid(
            f"expect.fresh: the column {column!r} {what}; it must be a date or a timestamp"
        )
    newest: list[datetime.date] = []
    try:
        for data_file in staged.files:
            with files.open(data_file.path) as opened:
                file = pq.ParquetFile(opened)
                at = [
                    file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)
                ].index(column)
                for group in range(file.metadata.num_row_groups):
                    statistics = file.metadata.row_group(group).column(at).statistics
                    if statistics is not None and statistics.has_min_max:
                        newest.append(statistics.max)
                    else:
                        value = pc.max(
                            file.read_row_group(group, columns=[column]).column(0)
                        ).as_py()
                        newest += [] if value is None else [value]
        return max(map(_seconds, newest), default=None)
    except (ValueError, OverflowError) as error:  # a date of the year 12000
        raise OutputInvalid(
            f"expect.fresh: a value of the column {column} cannot be read: {error}"
        ) from error


def _seconds(value: datetime.date) -> float:
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
