"""Measure an output while it is written: unique keys, and the newest value of a column."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any

from unstuck.tasks.errors import ExpectationFailed, OutputInvalid
from unstuck.tasks.frames.duplicate_keys import repeated_keys
from unstuck.tasks.frames.output import read_table
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput, bytes_by_uri

_SHOWN = 5  # keys that are not unique


def check_unique(files: Files, staged: StagedOutput, columns: Sequence[str], session: Any) -> None:
    """Check that no two rows have the same values in ``columns``; null counts as a value.

    Args:
        session: Spark session of the group; None to group the rows with Arrow in this process.

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
    if not number:
        return
    keys = "; ".join(
        ", ".join(map("{}={}".format, columns, key)) + f" ({rows:,} rows)" for *key, rows in some
    )
    more = "; …" if number > len(some) else ""
    stand = "key of {} stands" if number == 1 else "keys of {} stand"
    raise ExpectationFailed(
        f"expect.unique: {number:,} {stand.format(', '.join(columns))} in more than one row: "
        f"{keys}{more}"
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
    """Return the newest date or timestamp of ``column`` in epoch seconds; None without values.

    A date counts as its midnight in UTC, a timestamp without a zone as one in UTC. The statistics
    of the files are read; rows are read only if a file has none.

    Raises: OutputInvalid: there is no such column, or it has no dates or timestamps.
    """
    types = {field["name"]: field["type"] for field in json.loads(staged.schema)["fields"]}
    if types.get(column) not in ("date", "timestamp", "timestamp_ntz"):
        what = f"is of type {json.dumps(types[column])}" if column in types else "is not there"
        raise OutputInvalid(
            f"expect.fresh: the column {column!r} {what}; it must be a date or a timestamp"
        )
    try:
        newest = [value for file in staged.files for value in _newest(files, file.path, column)]
        return max(map(_seconds, newest), default=None)
    except (ValueError, OverflowError) as error:  # a date of the year 12000
        raise OutputInvalid(
            f"expect.fresh: a value of the column {column} cannot be read: {error}"
        ) from error


def _newest(files: Files, path: str, column: str) -> Iterator[datetime.date]:
    """Yield the newest value of each row group that has one."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with files.open(path) as opened:
        file = pq.ParquetFile(opened)
        paths = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        at = paths.index(column)
        for group in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(group).column(at).statistics
            if statistics is not None and statistics.has_min_max:
                yield statistics.max
                continue
            values = file.read_row_group(group, columns=[column]).column(0)
            if values.null_count < len(values):
                yield pc.max(values).as_py()


def _seconds(value: datetime.date) -> float:
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
