"""Converts columns to types that every reader reads alike.

Spark, Arrow, pandas, DuckDB and Polars read the same values from the plain types below. A column of
another type is stored as a plain type with the same values, or the output is refused before
anything is written.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from functools import cache, partial
from typing import Any, NoReturn

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.spec.types import MAX_DIGITS
from unstuck.tasks.time_zone import UTC

# Values with their row number, counted from 1; may be iterated over several times.
Values = Callable[[], Iterator[tuple[int, Any]]]

_PLAIN_IN_SPARK = re.compile(
    r"(void|boolean|byte|short|integer|long|float|double|decimal\(\d+,\d+\)|string( collate "
    r"\w+)?|char\(\d+\)"
    r"|varchar\(\d+\)|binary|date|timestamp|timestamp_ntz)"
)
# What to do instead, by the beginning of the type's name in Spark, Arrow or pandas.
_ADVICE = {
    "duration": "Parquet has no durations, so most readers would find a bare number. Store a "
    "number and say its unit in the name, such as integer microseconds",
    "interval": "Parquet has no intervals, so most readers would find a bare number. Store a "
    "number and say its unit in the name, such as integer microseconds or months",
    "month_day_nano": "Spark reads no intervals. Store numbers and say their units in the names",
    "timestamp": "Timestamps have whole microseconds. Round the values",
    "time": (
        "Spark reads no time of day. Store text, or the microseconds since midnight as an integer"
    ),
    "date64": "Dates have no hours. Store a timestamp",
    "uint64": (
        "Integers have 64 bits, one of them for the sign. Store text, or a decimal of "
        f"{MAX_DIGITS} digits"
    ),
    "object": "Integers have 64 bits, and all values of a column one type. Store text, or decimals",
    "decimal": f"Decimals have up to {MAX_DIGITS} digits, some or all of them after the point. "
    "Store text, a smaller decimal, or a double",
    "struct<>": "Parquet has no struct without fields. Drop it, or add a field",
    "variant": "Only Spark reads it. Store JSON text, as with to_json",
}
_CAST = (
    "Store text, numbers, booleans, dates, timestamps, binary data, or lists, maps and "
    "structs "
    "of these"
)


def check_spark_schema(schema: dict[str, Any]) -> None:
    """Check the JSON of a Spark struct before Spark writes it.

    Raises: OutputInvalid: there are no columns, two have the same name, or one has a type that not
    all readers know.
    """
    fields = schema["fields"]
    _check_names([field["name"] for field in fields])
    for field in fields:
        _check_spark_type(field["type"], field["name"])


def _check_spark_type(kind: Any, column: str) -> None:
    if isinstance(kind, str):
        if _PLAIN_IN_SPARK.fullmatch(kind) is None:
            _refuse(column, kind)
    elif kind["type"] == "struct":
        if not kind["fields"]:
            _refuse(column, "struct<>")
        _check_names([field["name"] for field in kind["fields"]], column)
        for field in kind["fields"]:
            _check_spark_type(field["type"], f"{column}.{field['name']}")
    else:
        # A user-defined type is stored as its sqlType.
        for part in ("elementType", "keyType", "valueType", "sqlType"):
            if part in kind:
                _check_spark_type(kind[part], column)


def arrow_table(frame: Any) -> Any:
    """Convert a pandas frame to an Arrow table, without its default index.

    Raises: OutputInvalid: there are no columns, two have the same name, the values of one have no
        common Arrow type, or the index holds more than numbers.
    """
    import pyarrow as pa

    _check_names(frame.columns)
    _check_index(frame)
    columns = {}
    for name, column in frame.items():
        try:
            columns[str(name)] = _array_of(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kind = column.dtype
            what = f"the column {name} ({kind}) cannot be stored: {error}; {_first_unfit(column)}"
            raise OutputInvalid(f"{what}. {_advice(kind)}") from error
        if column.dtype == object or column.dtype == "category":
            _check_times(str(name), columns[str(name)].type, partial(enumerate, column, 1))
    return pa.table(columns)


def _array_of(column: Any) -> Any:
    """Return the values of a pandas column as an Arrow array.

    Raises: pa.ArrowException, TypeError, ValueError, OverflowError.
    """
    import pyarrow as pa

    if column.dtype != "category":
        return pa.array(column, from_pandas=True)
    # Arrow before 25 loses the zone of categories that are instants if it makes the whole
    # (apache/arrow#49875).
    codes = column.cat.codes.to_numpy()
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, mask=codes < 0), pa.array(column.cat.categories)
    )


def _first_unfit(column: Any) -> str:
    """Return the first value of a pandas column that fits no Arrow type, with its row.

    The values before it fit together.
    """
    import pyarrow as pa

    def fails(rows: int) -> bool:
        try:
            _array_of(column.iloc[:rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return True
        return False

    if fails(0):
        return "no value of such a column can be stored"
    row = bisect_left(range(len(column)), True, key=fails)
    value = column.iloc[row - 1]
    return (
        f"row {row:,} is the first that does not fit: {repr(value)[:60]} ({type(value).__name__})"
    )


def _check_index(frame: Any) -> None:
    """Check that the index of a pandas frame holds no data that is in no column.

    Raises: OutputInvalid: it does, as after ``groupby``.
    """
    index = frame.index
    if not len(index):
        return
    lost = [
        f"it begins with {level[0]}" if level.name is None else level.name
        for level in map(index.get_level_values, range(index.nlevels))
        if (level.name is None and level.dtype.kind not in "iu")
        or (level.name is not None and level.name not in frame.columns)
    ]
    if lost:
        raise OutputInvalid(
            "the index of the pandas frame holds data "
            f"({', '.join(map(str, lost))}), and an index is not "
            "stored: reset_index() makes columns of it, reset_index(drop=True) numbers"
        )


def _check_times(column: str, kind: Any, values: Values) -> None:
    """Check that Arrow dropped no hours and no zones, also inside lists and structs.

    Raises: OutputInvalid.

    Args:
        kind: the type that Arrow gave to ``values``.
    """
    from pyarrow import types

    if types.is_dictionary(kind):
        _check_times(column, kind.value_type, values)
    elif types.is_struct(kind):
        for field in kind:
            _check_times(
                f"{column}.{field.name}", field.type, partial(_of_field, field.name, values)
            )
    elif types.is_nested(kind):  # a list: Arrow makes no map of what pandas holds
        _check_times(column, kind.value_type, partial(_of_lists, values))
    elif types.is_date32(kind):
        _check_alike(column, "dates and times, of which the hours would be lost", _is_time, values)
    elif types.is_timestamp(kind):
        _check_alike(column, "times with a zone and times without one", _is_naive, values)


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime)


def _is_naive(value: Any) -> bool:
    return getattr(value, "tzinfo", None) is None


def _check_alike(column: str, kinds: str, test: Callable[[Any], bool], values: Values) -> None:
    """Check that no value but null differs from the first in ``test``; no date is a time.

    Raises: OutputInvalid.
    """
    import pandas

    entries = list(values())
    nulls = pandas.Series([value for _, value in entries], dtype=object).isna()
    results = [
        (test(value), row, value)
        for (row, value), null in zip(entries, nulls, strict=True)
        if not null
    ]
    first = results[0][0] if results and test is not _is_time else False
    for result, row, value in results:
        if result != first:
            raise OutputInvalid(
                f"the column {column} mixes {kinds}, as in row {row:,}: {value}. Make them one "
                "kind, such as by pandas.to_datetime, with utc=True for instants"
            )


def _of_field(name: str, structs: Values) -> Iterator[tuple[int, Any]]:
    return (
        (row, struct[name])
        for row, struct in structs()
        if isinstance(struct, dict) and name in struct
    )


def _of_lists(lists: Values) -> Iterator[tuple[int, Any]]:
    return (
        (row, value)
        for row, elements in lists()
        if isinstance(elements, Collection)
        for value in elements
    )


def plain_table(table: Any) -> Any:
    """Convert an Arrow table to plain types with the same values.

    Raises:
        OutputInvalid: there are no columns, two have the same name, or one has a type that not all
            readers know or a value that its plain type cannot hold.
    """
    import pyarrow as pa

    _check_names(table.column_names)
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        plain = _plain_field(field, field.name)
        try:
            # The cast and the writer trust what Arrow has not checked: text that is no UTF-8,
            # decimals of more digits.
            column.validate(full=True)
            columns.append(column.cast(plain.type))
            unique = all(map(_keys_are_unique, columns[-1].chunks))
        except pa.ArrowException as error:
            raise OutputInvalid(
                f"the column {field.name} ({field.type}) cannot be stored as {plain.type}: "
                f"{error}. {_advice(field.type)}"
            ) from error
        if not unique:
            raise OutputInvalid(
                f"the column {field.name} ({field.type}) has a map with a key twice. Keep one of "
                "the two"
            )
        fields.append(plain)
    return pa.table(columns, schema=pa.schema(fields))


def in_zone_of(table: Any, zone: str) -> Any:
    """Convert the instants of an Arrow table to ``zone``, whose days they then have."""
    import pyarrow as pa

    if zone == UTC:
        return table
    fields = [
        field.with_type(pa.timestamp(field.type.unit, zone))
        if getattr(field.type, "tz", None)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _plain_field(field: Any, column: str) -> Any:
    import pyarrow as pa

    return pa.field(field.name, _plain_type(field.type, column), field.nullable)


def _plain_nested(kind: Any, column: str) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        if not kind.num_fields:
            _refuse(column, kind)
        _check_names([field.name for field in kind], column)
        return pa.struct([_plain_field(field, f"{column}.{field.name}") for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type, column), _plain_field(kind.item_field, column))
    lists = {
        pa.ListType: pa.list_,
        pa.FixedSizeListType: pa.list_,
        pa.LargeListType: pa.large_list,
        pa.ListViewType: pa.list_view,
        pa.LargeListViewType: pa.large_list_view,
    }
    if type(kind) not in lists:  # a union, or runs of equal values
        _refuse(column, kind)
    return lists[type(kind)](_plain_field(kind.value_field, column))


def _plain_type(kind: Any, column: str) -> Any:
    """Return the plain Arrow type for values of ``kind``. The cast refuses what does not fit."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        _refuse(column, kind)
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type, column)
    if types.is_nested(kind):
        return _plain_nested(kind, column)
    if types.is_timestamp(kind):
        # Parquet keeps whether a timestamp is an instant, and not the zone in which to show it.
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind):
        if not 0 <= kind.scale <= kind.precision <= MAX_DIGITS:
            _refuse(column, kind)
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    plain = _plain_types().get(kind)
    if plain is None:
        _refuse(column, kind)
    return plain


@cache
def _plain_types() -> dict[Any, Any]:
    """Return the plain type that holds all values of another one, or those that a cast allows."""
    import pyarrow as pa

    same = (
        *(pa.null(), pa.bool_(), pa.date32(), pa.float32(), pa.float64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
    return {kind: kind for kind in same} | {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
        pa.string_view(): pa.large_string(),
        pa.binary_view(): pa.large_binary(),
    }


def _keys_are_unique(array: Any) -> bool:
    """Return whether no map in a plain array has a key twice.

    Readers would keep one of the two values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if types.is_map(kind):
        keys = pa.ListArray.from_arrays(array.offsets, array.keys)
        pairs = pa.table({"map": pc.list_parent_indices(keys), "key": pc.list_flatten(keys)})
        # Arrow compares no keys that are structs or lists.
        if not types.is_nested(kind.key_type) and len(
            pairs.group_by(["map", "key"]).aggregate([])
        ) < len(pairs):
            return False
        return _keys_are_unique(array.keys) and _keys_are_unique(array.items)
    if types.is_struct(kind):
        return all(map(_keys_are_unique, array.flatten()))
    return not types.is_nested(kind) or _keys_are_unique(array.flatten())


def _check_names(names: Iterable[Any], struct: str = "") -> None:
    """Refuse names that are equal for Spark and DuckDB, which ignore case."""
    place = f"the struct {struct}" if struct else "the frame"
    taken: dict[str, str] = {}
    for name in map(str, names):
        if not name:
            raise OutputInvalid(f"a column of {place} has no name. Give it one")
        if (other := taken.get(name.lower())) is not None:
            alike = (
                f"two columns {name}"
                if name == other
                else f"columns {other} and {name}, which Spark takes for one"
            )
            raise OutputInvalid(f"{place} has {alike}. Give one of them another name")
        taken[name.lower()] = name
    if not taken:
        raise OutputInvalid(
            f"{place} has no columns, and no reader can tell its rows. Give it a column, or write "
            "no output"
        )


def _refuse(column: str, kind: Any) -> NoReturn:
    raise OutputInvalid(
        f"the column {column} is {kind}, which not all readers read alike. {_advice(kind)}"
    )


def _advice(kind: Any) -> str:
    return next(
        (advice for beginning, advice in _ADVICE.items() if str(kind).startswith(beginning)), _CAST
    )
