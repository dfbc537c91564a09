"""Casts a frame without loss to the declared or published columns, or reports row and value.

A value fits a type if it is the same after a cast to that type and back. Text is parsed only if the
file format has nothing but text. A float fits a whole number or a decimal only below 2^53 (2^24 for
a 32-bit float): above that, several whole numbers have the same float, so the original value is
unknown. In Spark the check is part of the write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.columns import check_spark_schema
from unstuck.tasks.frames.refusals import literal, refusal
from unstuck.tasks.frames.spark import empty_table, is_frame, spark_schema
from unstuck.tasks.spec.schemas import VOID, Fields, are_alike, fields_of, schema_of
from unstuck.tasks.spec.types import field, parse_type, quoted, type_in_sql, type_text
from unstuck.tasks.spec.types import shown as named

_NUMBER = re.compile(r"byte|short|integer|long|float|double|decimal\(\d+,\d+\)")
_TEXT = re.compile(r"string.*|char\(\d+\)|varchar\(\d+\)")
_TIMES = {"timestamp", "timestamp_ntz", "date"}
_TOO_LONG = "9.223372036854775807E18D"  # as a double, 2^63
# The first float to which several whole numbers are rounded.
_INEXACT_FROM = {"float": 2.0**24, "double": 2.0**53}
# Text, its type and the one in Arrow to that one; raises pa.ArrowException where a value is none of
# that type.
Parse = Callable[[Any, str, Any], Any]
_SHOWN = 8  # columns of a row, in an error
_LONG = 300  # characters of a row or a value, in an error


def declared_fields(columns: Iterable[tuple[str, str]]) -> Fields:
    """Return the columns of ``columns:`` as fields of a schema."""
    return [field(name, parse_type(text)) for name, text in columns]


def schema_of_frame(frame: Any) -> str:
    """Return the schema of a Spark frame, or of an Arrow table of plain types."""
    if is_frame(frame):
        return str(frame.schema.json())
    import pyarrow as pa

    return spark_schema(pa.schema(list(map(_as_lists, frame.schema))))


def _as_lists(field: Any) -> Any:
    """A field of Arrow with lists for views of lists, which Spark does not know."""
    import pyarrow as pa

    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct(list(map(_as_lists, kind)))
    elif isinstance(kind, pa.MapType):
        kind = pa.map_(_as_lists(kind.key_field).type, _as_lists(kind.item_field))
    elif isinstance(kind, pa.ListType | pa.LargeListType | pa.ListViewType | pa.LargeListViewType):
        kind = pa.list_(_as_lists(kind.value_field))
    return field.with_type(kind)


def cast_frame(frame: Any, target_fields: Fields, *, fill: bool = False) -> Any:
    """Cast a Spark frame, or an Arrow table of plain types, to ``target_fields``, in their order.

    Args:
        fill: whether a missing column is null instead of an error.

    Raises:
        OutputInvalid: the frame has other columns, or a value of a table does not fit. If a value
            of a Spark frame does not fit, its write fails, and `refused_value` finds the reason in
            that error.
    """
    if is_frame(frame):
        check_spark_schema(json.loads(frame.schema.json()))
    have = fields_of(schema_of_frame(frame))
    if have == target_fields:
        return frame
    matched = _matched(have, target_fields, fill, "the frame")
    if is_frame(frame):
        return _cast_spark(frame, matched, have)
    return _cast_table(frame, matched, target_fields)


def cast_of_file(
    table: Any, target_fields: Fields, place: Callable[[int], str], parse: Parse | None = None
) -> Any:
    """Cast an Arrow table from a file, of plain types, to ``target_fields``, in their order.

    ``table`` has a column without a type for each column that the file lacks.

    Args:
        place: word for the place of a row, as in "line 7".
        parse: converts text to values of other types.

    Raises: OutputInvalid: a value does not fit.
    """
    have = fields_of(schema_of_frame(table))
    return _cast_table(
        table, _matched(have, target_fields, False, "the file"), target_fields, place, parse
    )


_Matched = list[tuple[dict[str, Any] | None, dict[str, Any]]]


def _matched(have: Fields, target_fields: Fields, fill: bool, what: str) -> _Matched:
    """Return each of ``target_fields`` with the source column of the same name, or None.

    Names are compared without case, as in Spark.

    Raises: OutputInvalid.
    """
    remaining = {column["name"].lower(): column for column in have}
    matched = [
        (remaining.pop(declared["name"].lower(), None), declared) for declared in target_fields
    ]
    missing = [] if fill else [declared for source, declared in matched if source is None]
    if not remaining and not missing:
        return matched
    differences = [f"lacks {_listed(missing)}"] if missing else []
    if remaining:
        differences.append(f"has {_listed(remaining.values())} as well")
        advice = "leave it out of the frame, or declare it"
    else:
        advice = (
            "add it to the frame, null or not, or say on_schema_change: evolve, with which a "
            "missing column is null"
        )
    raise OutputInvalid(
        f"{what} has the columns {_listed(have)}, and columns: declares {_listed(target_fields)}: "
        f"it {' and '.join(differences)}. For each of these, {advice}"
    )


def _listed(fields: Iterable[dict[str, Any]]) -> str:
    return ", ".join(named(column["name"]) for column in fields) or "none"


def _why(path: str, kind: Any, target_type: Any) -> tuple[str, str]:
    """The text before and after a value that does not fit."""
    if "timestamp" in (kind, target_type) and {str(kind), str(target_type)} <= _TIMES:
        advice = (
            "An instant and a time without a zone are not mixed; convert it in the step, and "
            "say the zone there"
        )
    elif isinstance(kind, str) and _TEXT.fullmatch(kind):
        advice = "Text is not parsed; convert it in the step"
    elif (limit := _inexact_from(kind, target_type)) is not None:
        advice = (
            f"From {limit:.0f} on, several whole numbers are the same {kind}. Keep whole numbers "
            "out of floats: pandas makes floats of integers with a null, except with the dtype "
            "Int64. Or declare another type"
        )
    else:
        advice = "Mend the value, or declare another type"
    before = (
        f"the column {path} is to be {type_text(target_type)}, and holds the {type_text(kind)} "
    )
    return before, f", which cannot be cast without loss. {advice}"


def _why_no_text(path: str, target_type: Any) -> tuple[str, str]:
    return f"the column {path} is to be {type_text(target_type)}, and holds the text ", (
        f", which is no {type_text(target_type)}. Mend the file, or declare another type"
    )


def _inexact_from(kind: Any, target_type: Any) -> float | None:
    """Return the magnitude from which a float of the type ``kind`` does not fit ``target_type``.

    Return None for other types.
    """
    if not _castable(kind, target_type) or target_type in _INEXACT_FROM:
        return None
    return _INEXACT_FROM.get(kind)


def _castable(kind: Any, target_type: Any) -> bool:
    """Whether some value of ``kind`` may fit ``target_type``, another type."""
    if not isinstance(kind, str) or not isinstance(target_type, str):
        return False
    return bool(_NUMBER.fullmatch(kind) and _NUMBER.fullmatch(target_type)) or {
        kind,
        target_type,
    } == {
        "date",
        "timestamp_ntz",
    }


# -- Spark -----------------------------------------------------------------------------------------


def _cast_spark(frame: Any, matched: _Matched, have: Fields) -> Any:
    from pyspark.sql.functions import expr

    first = ", ".join(quoted(column["name"]) for column in have[:_SHOWN])
    values = f"left(cast(struct({first}) as string), {_LONG})"
    row = f"{literal(f'. The row: {_listed(have[:_SHOWN])} = ')}, {values}"
    columns = []
    for source, declared in matched:
        value = "null" if source is None else quoted(source["name"])
        text = _sql(
            value,
            VOID if source is None else source["type"],
            declared["type"],
            named(declared["name"]),
            row,
            0,
        )
        columns.append(expr(text).alias(declared["name"]))
    return frame.select(*columns)


def _sql(value: str, kind: Any, target_type: Any, path: str, row: str, depth: int) -> str:
    """Return SQL that casts ``value`` to ``target_type``.

    The query ends with an error where the value does not fit.

    No conf of the session counts: ``try_cast`` follows ANSI in all of them, and no literal has
    quotes of its own.
    """
    if kind == target_type:
        return value
    target = _sql_type(target_type)
    if kind == VOID or (target_type == "string" and _TEXT.fullmatch(str(kind))):
        return f"cast({value} as {target})"
    if are_alike(kind, target_type):
        return _sql_inside(value, kind, target_type, path, row, depth)
    before, after = map(literal, _why(path, kind, target_type))
    error = refusal(before, f"left(cast({value} as string), {_LONG})", after, row)
    refused = f"cast({error} as {target})"
    if not _castable(kind, target_type):
        return f"if({value} is null, cast(null as {target}), {refused})"
    cast = f"try_cast({value} as {target})"
    fits = f"try_cast({cast} as {_sql_type(kind)}) = {value}"
    if (limit := _inexact_from(kind, target_type)) is not None:
        fits += f" and abs({value}) < {limit:.0f}"
    elif kind == "long" and target_type in _INEXACT_FROM:
        # Spark takes 2^63 for the largest long, which is one less.
        fits += f" and {cast} < {_TOO_LONG}"
    return f"case when {value} is null or coalesce({fits}, false) then {cast} else {refused} end"


def _sql_inside(value: str, kind: Any, target_type: Any, path: str, row: str, depth: int) -> str:
    def inner(value: str, part: str, named: str) -> str:
        return _sql(value, kind[part], target_type[part], f"{path}.{named}", row, depth + 1)

    each = f"unstuck_{depth}"
    if kind["type"] == "array":
        return f"transform({value}, {each} -> {inner(each, 'elementType', 'element')})"
    if kind["type"] == "map":
        key, item = (
            inner(f"{each}.key", "keyType", "key"),
            inner(f"{each}.value", "valueType", "value"),
        )
        return (
            f"map_from_entries(transform(map_entries({value}), {each} -> struct({key} as key, "
            f"{item} as value)))"
        )
    parts = []
    for source, declared in _matched(
        kind["fields"], target_type["fields"], False, f"the column {path}"
    ):
        assert source is not None
        text = _sql(
            f"{value}.{quoted(source['name'])}",
            source["type"],
            declared["type"],
            f"{path}.{named(declared['name'])}",
            row,
            depth + 1,
        )
        parts.append(f"{text} as {quoted(declared['name'])}")
    return f"if({value} is null, null, struct({', '.join(parts)}))"


def _sql_type(kind: Any) -> str:
    """A type in SQL: a conf may give the name ``timestamp`` another meaning."""
    return type_in_sql(kind, timestamp="timestamp_ltz")


# -- Arrow -----------------------------------------------------------------------------------------


class _Unfit(Exception):
    """A value does not fit; holds the text before and after a value."""


def _cast_table(
    table: Any,
    matched: _Matched,
    target_fields: Fields,
    place: Callable[[int], str] | None = None,
    parse: Parse | None = None,
) -> Any:
    import pyarrow as pa

    types = empty_table(schema_of(target_fields)).schema
    columns = []
    for (source, declared), target in zip(matched, types, strict=True):
        if source is None:
            columns.append(pa.nulls(len(table), target.type))
            continue
        column, path = table[source["name"]], named(declared["name"])

        def cast(
            array: Any,
            source: Any = source,
            declared: Any = declared,
            target: Any = target,
            path: str = path,
        ) -> Any:
            return _array(array, source["type"], declared["type"], target.type, path, parse)

        chunks, start = [], 0
        for chunk in column.chunks:
            try:
                chunks.append(cast(chunk))
            except _Unfit:
                row = start + _first_unfit(chunk, cast)
                raise _refused_in(table, column, row, cast, place) from None
            start += len(chunk)
        # A chunk of nulls has the small type of a list or a text, and others may have the large
        # one.
        kind = next((chunk.type for chunk in chunks if chunk.null_count < len(chunk)), target.type)
        columns.append(pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind))
    return pa.table(columns, names=[declared["name"] for declared in target_fields])


def _refused_in(
    table: Any,
    column: Any,
    row: int,
    cast: Callable[[Any], Any],
    place: Callable[[int], str] | None,
) -> OutputInvalid:
    before, after = "", ""
    try:
        cast(column.slice(row, 1).combine_chunks())
    except _Unfit as unfit:
        before, after = unfit.args
    shown = {name: _shown(table[name][row]) for name in table.column_names[:_SHOWN]}
    values = ", ".join(f"{named(name)} = {value}" for name, value in shown.items())
    where = f"Row {row + 1} of {len(table)}" if place is None else place(row).capitalize()
    return OutputInvalid(f"{before}{_shown(column[row])}{after}. {where}: {values[:_LONG]}")


def _shown(scalar: Any) -> str:
    try:
        return str(scalar.as_py())[:_LONG]
    except (ValueError, OverflowError):  # a date of the year 12000
        return repr(scalar)


def _first_unfit(array: Any, cast: Callable[[Any], Any]) -> int:
    """The index of the first value that does not fit, found by halves."""
    low, high = 0, len(array)  # it is in array[low:high]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast(array.slice(low, middle - low))
            low = middle
        except _Unfit:
            high = middle
    return low


def _array(
    array: Any, kind: Any, target_type: Any, target: Any, path: str, parse: Parse | None = None
) -> Any:
    """Cast ``array`` of the type ``kind`` to ``target``, which is ``target_type`` in Arrow.

    Raises: _Unfit, OutputInvalid.
    """
    import pyarrow as pa

    if kind == target_type:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if are_alike(kind, target_type):
        return _array_inside(array, kind, target_type, target, path, parse)
    if parse is not None and kind == "string" and isinstance(target_type, str):
        try:
            return parse(array, target_type, target)
        except pa.ArrowException:
            raise _Unfit(*_why_no_text(path, target_type)) from None
    if _castable(kind, target_type):
        with suppress(pa.ArrowException):
            cast = _cast(array, target)
            limit = _inexact_from(kind, target_type)
            if _same(_cast(cast, array.type), array) and _all_below(array, limit):
                return cast
    raise _Unfit(*_why(path, kind, target_type))


def _array_inside(
    array: Any, kind: Any, target_type: Any, target: Any, path: str, parse: Parse | None
) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    # Copied, so that nothing of it lies outside a slice.
    array = array.take(pa.array(np.arange(len(array))))
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if kind["type"] == "struct":
        parts = []
        for source, declared in _matched(
            kind["fields"], target_type["fields"], False, f"the column {path}"
        ):
            assert source is not None
            inner = target.field(declared["name"]).type
            value, below = array.field(source["name"]), f"{path}.{declared['name']}"
            parts.append(_array(value, source["type"], declared["type"], inner, below, parse))
        named = [
            pa.field(declared["name"], part.type)
            for declared, part in zip(target_type["fields"], parts, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=named, mask=pa.array(nulls))
    if kind["type"] == "map":
        offsets = pa.array(array.offsets.to_numpy(), pa.int32(), mask=np.append(nulls, False))
        keys = _array(
            array.keys,
            kind["keyType"],
            target_type["keyType"],
            target.key_type,
            f"{path}.key",
            parse,
        )
        items = _array(
            array.items,
            kind["valueType"],
            target_type["valueType"],
            target.item_type,
            f"{path}.value",
            parse,
        )
        return pa.MapArray.from_arrays(offsets, keys, items)
    # A list view has no offsets.
    ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy())
    offsets = pa.array(np.append(0, ends), pa.int64(), mask=np.append(nulls, False))
    inner = (
        kind["elementType"],
        target_type["elementType"],
        target.value_type,
        f"{path}.element",
        parse,
    )
    return pa.LargeListArray.from_arrays(offsets, _array(pc.list_flatten(array), *inner))


def _cast(array: Any, target: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_integer(array.type) and pa.types.is_decimal(target):
        array = array.cast(pa.decimal128(20, 0))  # Arrow asks the type for room, and not the values
    return array.cast(
        target, safe=not (pa.types.is_integer(array.type) and pa.types.is_floating(target))
    )


def _all_below(array: Any, limit: float | None) -> bool:
    """Whether the magnitude of each number in ``array`` is below ``limit``; None is no limit."""
    import pyarrow.compute as pc

    return limit is None or bool(pc.all(pc.less(pc.abs(array), limit), min_count=0).as_py())


def _same(array: Any, other: Any) -> bool:
    """Whether two arrays of numbers or times hold the same values; NaN is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    equal = pc.equal(array, other)
    if pa.types.is_floating(array.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(array), pc.is_nan(other)))
    return bool(pc.all(equal, min_count=0).as_py())
