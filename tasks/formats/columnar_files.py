"""Parquet and ORC files as tables of plain types, a part at a time."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.formats.file_content import Placed, Unreadable
from unstuck.tasks.frames.columns import plain_table

_ROWS = 100_000  # of a table
_GREGORIAN = datetime.date(1582, 11, 1)  # and some days, by which the calendars differ
Choose = Callable[[list[str]], list[str]]


def read_parquet_file(stream: Any, choose: Choose) -> Iterator[Placed]:
    """The columns that ``choose`` takes out of the names in the file. Raises: Unreadable; what ``choose`` raises."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without a unit, Arrow has nanoseconds for the timestamps that Spark writes by default, and few centuries.
        file = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        schema = file.schema_arrow
        names = choose(list(schema.names))
        found = map(file.schema.column, range(len(file.schema)))
        instants = {column.path.partition(".")[0] for column in found if column.physical_type == "INT96"}
        # A name with a dot may be that of a field, too.
        columns = None if any("." in name for name in names) else names
        rows = 0
        for batch in file.iter_batches(_ROWS, columns=columns):
            yield _plain(pa.Table.from_batches([batch]).select(names), instants), _counted(rows)
            rows += len(batch)
    except pa.ArrowException as error:
        raise Unreadable(f"it cannot be read as Parquet: {error}") from error


def read_orc(stream: Any, choose: Choose, instants: Collection[str], zone: str) -> Iterator[Placed]:
    """As `read_parquet_file`, of ORC.

    Args:
        instants: the columns, in small letters, that are to be instants: a file of ORC says for them what a clock in
            the ``zone`` shows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import orc

    try:
        file = orc.ORCFile(stream)
        names = choose(list(file.schema.names))
        rows = 0
        for stripe in range(file.nstripes):
            table = _plain(pa.Table.from_batches([file.read_stripe(stripe, columns=names)]).select(names), ())
            _check_calendar(table, rows)
            for number, field in enumerate(table.schema):
                if field.name.lower() in instants and field.type == pa.timestamp("us"):
                    zoned = pc.assume_timezone(table[number], zone, ambiguous="earliest", nonexistent="raise")
                    table = table.set_column(number, field.name, zoned.cast(pa.timestamp("us", "UTC")))
            yield table, _counted(rows)
            rows += len(table)
    except pa.ArrowException as error:
        raise Unreadable(f"it cannot be read as ORC: {error}") from error


def _check_calendar(table: Any, before: int) -> None:
    """Raises: Unreadable: a day may be of the Julian calendar, as ORC files of Java have it, or of the Gregorian."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def old(array: Any) -> bool:
        if pa.types.is_nested(array.type):
            return any(map(old, array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]))
        return pa.types.is_date(array.type) and (pc.min(array).as_py() or _GREGORIAN) < _GREGORIAN

    for name, column in zip(table.column_names, table.columns, strict=True):
        if any(map(old, column.chunks)):
            raise Unreadable(
                f"the column {name} has a day before {_GREGORIAN} in one of the rows from {before + 1:,} on, and a "
                "file of ORC does not say in which calendar. Write it as Parquet, or as text"
            )


def _counted(before: int) -> Callable[[int], int]:
    return lambda row: before + row + 1


def _plain(table: Any, instants: Collection[str]) -> Any:
    """``instants``: columns whose timestamps are instants, which the file has no word for."""
    import pyarrow as pa

    fields = [field.with_type(_zoned(field.type)) if field.name in instants else field for field in table.schema]
    try:
        return plain_table(table.cast(pa.schema(fields)))
    except OutputInvalid as error:
        raise Unreadable(str(error)) from error


def _zoned(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_zoned(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_zoned(kind.key_type), _zoned(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_zoned(kind.value_type))
    return kind
