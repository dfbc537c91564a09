"""Reads Parquet and ORC files into tables of plain types, one part at a time."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.formats.bounds import Bound
from unstuck.tasks.formats.file_content import Placed, Unreadable
from unstuck.tasks.frames.columns import plain_table

_ROWS = 100_000  # of a table
_BYTES = 16 * 1024 * 1024  # of a table
_AT_ONCE = 2048  # rows that are decoded at once: each may be a reference to one long text
_GREGORIAN = datetime.date(1582, 11, 1)  # and some days, by which the calendars differ
_FIRST_DAY = (_GREGORIAN - datetime.date(1970, 1, 1)).days
# Before it, time zones differ as well.
_FIRST_TIME = int(datetime.datetime(1900, 1, 2, tzinfo=datetime.UTC).timestamp()) * 10**6
Choose = Callable[[list[str]], list[str]]


def read_parquet_file(stream: Any, choose: Choose, bound: Bound) -> Iterator[Placed]:
    """Read the columns that ``choose`` selects from the names in the file.

    Raises: Unreadable; errors of ``choose``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without a unit, Arrow has nanoseconds for the timestamps that Spark writes by default, and
        # few centuries.
        file = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        schema = file.schema_arrow
        names = choose(list(schema.names))
        leaf_columns = map(file.schema.column, range(len(file.schema)))
        instants = {
            column.path.partition(".")[0]
            for column in leaf_columns
            if column.physical_type == "INT96"
        }
        calendar = _calendar_of(file.metadata.metadata or {}, bool(instants))
        # A name with a dot may be that of a field, too.
        columns = None if any("." in name for name in names) else names
        bound.check_rows(file.metadata.num_rows, pa.schema([schema.field(name) for name in names]))
        rows = 0
        for batch in _joined(file.iter_batches(_AT_ONCE, columns=columns)):
            table = _plain(batch.select(names), instants)
            if calendar:
                _check_calendar(table, rows, calendar, times=True)
            yield table, _counted(rows)
            rows += len(batch)
    except pa.ArrowException as error:
        raise Unreadable(f"it cannot be read as Parquet: {error}") from error


def read_orc(
    stream: Any, choose: Choose, bound: Bound, instants: Collection[str], zone: str
) -> Iterator[Placed]:
    """Read an ORC file like `read_parquet_file`.

    Args:
        instants: columns, in lower case, that become instants: an ORC file has their local time in
            ``zone``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import orc

    try:
        file = orc.ORCFile(stream)
        names = choose(list(file.schema.names))
        bound.check_rows(file.nrows, pa.schema([file.schema.field(name) for name in names]))
        rows = 0
        for stripe in range(file.nstripes):
            table = _plain(
                pa.Table.from_batches([file.read_stripe(stripe, columns=names)]).select(names), ()
            )
            _check_calendar(
                table,
                rows,
                "a file of ORC does not say in which calendar. Write it as Parquet, or as text",
            )
            for number, field in enumerate(table.schema):
                if field.name.lower() in instants and field.type == pa.timestamp("us"):
                    zoned = pc.assume_timezone(
                        table[number], zone, ambiguous="earliest", nonexistent="raise"
                    )
                    table = table.set_column(
                        number, field.name, zoned.cast(pa.timestamp("us", "UTC"))
                    )
            yield table, _counted(rows)
            rows += len(table)
    except pa.ArrowException as error:
        raise Unreadable(f"it cannot be read as ORC: {error}") from error


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Tables of small ``batches``: each table costs as much as some thousand rows."""
    import pyarrow as pa

    held, rows, size = list[Any](), 0, 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _calendar_of(about: Mapping[bytes, bytes], int96: bool) -> str:
    """Return why old days of a Parquet file use another calendar; empty if they do not.

    ``about``: the metadata in its footer.
    """
    version = about.get(
        b"org.apache.spark.version",
        b"2" if b"org.apache.spark.sql.parquet.row.metadata" in about else b"3",
    )
    keys = ["org.apache.spark.legacyDateTime", *(["org.apache.spark.legacyINT96"] if int96 else [])]
    if version.startswith((b"1", b"2")):
        by = "Spark before 3.0 wrote the file"
    elif key := next((key for key in keys if key.encode() in about), ""):
        by = f"the file says {key}"
    else:
        return ""
    return (
        f"{by}, so it is of the Julian calendar. Write it with datetimeRebaseModeInWrite: "
        "CORRECTED, or as text"
    )


def _check_calendar(table: Any, before: int, why: str, times: bool = False) -> None:
    """``times``: timestamps are of the calendar, too.

    Raises: Unreadable: a day may be of the Julian calendar, as files of Java have it, or of the
    Gregorian.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if any(_is_old(chunk, times) for chunk in column.chunks):
            raise Unreadable(
                f"the column {name} has a day before "
                f"{_GREGORIAN}{', or a time before 1900,' * times} in one of the rows from "
                f"{before + 1:,} on, and {why}"
            )


def _is_old(array: Any, times: bool) -> bool:
    """Whether a value, also inside lists and structs, is before the calendars agree."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_map(kind):
        return _is_old(array.keys, times) or _is_old(array.items, times)
    if pa.types.is_struct(kind):
        return any(_is_old(part, times) for part in array.flatten())
    if pa.types.is_nested(kind):
        return _is_old(array.flatten(), times)
    if pa.types.is_date(kind):
        first = _FIRST_DAY
    elif times and pa.types.is_timestamp(kind):
        first = _FIRST_TIME
    else:
        return False
    least = pc.min(array).value
    return least is not None and least < first


def _counted(before: int) -> Callable[[int], int]:
    return lambda row: before + row + 1


def _plain(table: Any, instants: Collection[str]) -> Any:
    """``instants``: columns whose timestamps are instants, which the file has no word for."""
    import pyarrow as pa

    fields = [
        field.with_type(_zoned(field.type)) if field.name in instants else field
        for field in table.schema
    ]
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
