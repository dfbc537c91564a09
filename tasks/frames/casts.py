"""Casts without loss: bring a frame to the columns that are declared or published, or refuse it
with row and value.

A value fits a type if it is the same value after a cast to that type and back; text is parsed only
where a file holds nothing else. A float fits a whole number or a decimal only below 2^53 (2^24 for
a 32-bit float): above, several whole numbers become the same float, so the value may have been
changed before. In Spark the check is part of the write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.columns import check_spark_schema
from unstuck.tasks.frames.refusals import literal, refusal
from unstuck.tasks.frames.spark import empty_table, is_frame, spark_schema
from unstuck.tasks.spec.schemas import VOID, Fields, fields_of, schema_of
from unstuck.tasks.spec.types import field, parse_type, quoted, type_in_sql, type_text
from unstuck.tasks.spec.types import shown as named

_NUMBER = re.compile(r"byte|short|integer|long|float|double|decimal\(\d+,\d+\)")
_TEXT = re.compile(r"string.*|char\(\d+\)|varchar\(\d+\)")
_TIMES = {"timestamp", "timestamp_ntz", "date"}
_TOO_LONG = "9.223372036854775807E18D"  # as a double, 2^63
_INEXACT_FROM = {
    "float": 2.0**24,
    "double": 2.0**53,
}  # the first float that several whole numbers are rounded to
# Text, its type and the one in Arrow to that one; raises pa.ArrowException where a value is none of
# that type.
Parse = Callable[[Any, str, Any], Any]
_SHOWN = 8  # columns of a row, in an error
_LONG = 300  # characters of a row or a value, in an error


def declared_fields(columns: Iterable[tuple[str, str]]) -> Fields:
    """The columns of ``columns:`` as schemas have them."""
    return [field(name, parse_type(text)) for name, text in columns]


def schema_of_frame(frame: Any) -> str:
    """The schema of a Spark frame, or of an Arrow table of plain types."""
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


def cast_frame(frame: Any, wanted: Fields, *, fill: bool = False) -> Any:
    """A Spark frame, or an Arrow table of plain types, with the ``wanted`` columns in their order.

    Args:
        fill: a column that the frame lacks is null, and no error.

    Raises:
        OutputInvalid: the frame has other columns; or, of a table, a value does not fit. Where a
            value of a Spark frame does not fit, its write fails, and `refused_value` finds the
            reason in the error.
    """
    if is_frame(frame):
        check_spark_schema(json.loads(schema := schema_of_frame(frame)))
        have = fields_of(schema)
        return (
            frame
            if have == wanted
            else _cast_spark(frame, _matched(have, wanted, fill, "the frame"), have)
        )
    have = fields_of(schema_of_frame(frame))
    return (
        frame
        if have == wanted
        else _cast_table(frame, _matched(have, wanted, fill, "the frame"), wanted)
    )


def cast_of_file(
    table: Any, wanted: Fields, place: Callable[[int], str], parse: Parse | None = None
) -> Any:
    """An Arrow table out of a file, of plain types, with the ``wanted`` columns, of which it has
    one without a type for each that the file lacks.

    Args:
        place: of a row, as in "line 7".
        parse: makes values of text, where it stands for values of another type.

    Raises: OutputInvalid: a value does not fit.
    """
    have = fields_of(schema_of_frame(table))
    return _cast_table(table, _matched(have, wanted, False, "the file"), wanted, place, parse)


_Matched = list[tuple[dict[str, Any] | None, dict[str, Any]]]


def _matched(have: Fields, wanted: Fields, fill: bool, what: str) -> _Matched:
    """Each of the ``wanted`` columns with the one that a frame has for it; Spark compares names
    without case.

    Raises: OutputInvalid.
    """
    there = {one["name"].lower(): one for one in have}
    found = [(there.pop(one["name"].lower(), None), one) for one in wanted]
    missing = [one["name"] for its, one in found if its is None]
    if there or (missing and not fill):
        differences = [f"lacks {_listed(missing)}"] if missing and not fill else []
        differences += (
            [f"has {_listed(one['name'] for one in there.values())} as well"] if there else []
        )
        advice = (
            "leave it out of the frame, or declare it"
            if there
            else "add it to the frame, null or not"
        )
        if not there:
            advice += ", or say on_schema_change: evolve, with which a missing column is null"
        raise OutputInvalid(
            f"{what} has the columns {_listed(one['name'] for one in have)}, and columns: declares "
            f"{_listed(one['name'] for one in wanted)}: it {' and '.join(differences)}. For each "
            f"of these, {advice}"
        )
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(named, names)) or "none"


def _why(path: str, kind: Any, wanted: Any) -> tuple[str, str]:
    """The text before and after a value that does not fit."""
    if "timestamp" in (kind, wanted) and {str(kind), str(wanted)} <= _TIMES:
        advice = (
            "An instant and a time without a zone are not mixed; convert it in the step, and "
            "say the zone there"
        )
    elif isinstance(kind, str) and _TEXT.fullmatch(kind):
        advice = "Text is not parsed; convert it in the step"
    elif (limit := _inexact_from(kind, wanted)) is not None:
        advice = (
            f"From {limit:.0f} on, several whole numbers are the same {kind}. Keep whole numbers "
            "out of floats: pandas makes floats of integers with a null, except with the dtype "
            "Int64. Or declare another type"
        )
    else:
        advice = "Mend the value, or declare another type"
    before = f"the column {path} is to be {type_text(wanted)}, and holds the {type_text(kind)} "
    return before, f", which cannot be cast without loss. {advice}"


def _why_no_text(path: str, wanted: Any) -> tuple[str, str]:
    return f"the column {path} is to be {type_text(wanted)}, and holds the text ", (
        f", which is no {type_text(wanted)}. Mend the file, or declare another type"
    )


def _inexact_from(kind: Any, wanted: Any) -> float | None:
    """The magnitude from which a float of the type ``kind`` does not fit ``wanted``; None for other
    types.
    """
    if not _castable(kind, wanted) or wanted in _INEXACT_FROM:
        return None
    return _INEXACT_FROM.get(kind)


def _castable(kind: Any, wanted: Any) -> bool:
    """Whether some value of ``kind`` may fit ``wanted``, another type."""
    if not isinstance(kind, str) or not isinstance(wanted, str):
        return False
    return bool(_NUMBER.fullmatch(kind) and _NUMBER.fullmatch(wanted)) or {kind, wanted} == {
        "date",
        "timestamp_ntz",
    }


# -- Spark -----------------------------------------------------------------------------------------


def _cast_spark(frame: Any, matched: _Matched, have: Fields) -> Any:
    from pyspark.sql.functions import expr

    first = [one["name"] for one in have[:_SHOWN]]
    values = f"left(cast(struct({', '.join(map(quoted, first))}) as string), {_LONG})"
    row = f"{literal(f'. The row: {_listed(first)} = ')}, {values}"
    columns = []
    for its, one in matched:
        value = "null" if its is None else quoted(its["name"])
        text = _sql(
            value, VOID if its is None else its["type"], one["type"], named(one["name"]), row, 0
        )
        columns.append(expr(text).alias(one["name"]))
    return frame.select(*columns)


def _sql(value: str, kind: Any, wanted: Any, path: str, row: str, depth: int) -> str:
    """SQL for ``value`` as ``wanted``, which ends the query with an error where the value does not
    fit.

    No conf of the session counts: ``try_cast`` follows ANSI in all of them, and no literal has
    quotes of its own.
    """
    if kind == wanted:
        return value
    target = _sql_type(wanted)
    if kind == VOID or (wanted == "string" and isinstance(kind, str) and _TEXT.fullmatch(kind)):
        return f"cast({value} as {target})"
    if isinstance(kind, dict) and isinstance(wanted, dict) and kind["type"] == wanted["type"]:
        return _sql_inside(value, kind, wanted, path, row, depth)
    before, after = map(literal, _why(path, kind, wanted))
    error = refusal(before, f"left(cast({value} as string), {_LONG})", after, row)
    refused = f"cast({error} as {target})"
    if not _castable(kind, wanted):
        return f"if({value} is null, cast(null as {target}), {refused})"
    cast = f"try_cast({value} as {target})"
    fits = f"try_cast({cast} as {_sql_type(kind)}) = {value}"
    if (limit := _inexact_from(kind, wanted)) is not None:
        fits += f" and abs({value}) < {limit:.0f}"
    elif kind == "long" and wanted in _INEXACT_FROM:
        # Spark takes 2^63 for the largest long, which is one less.
        fits += f" and {cast} < {_TOO_LONG}"
    return f"case when {value} is null or coalesce({fits}, false) then {cast} else {refused} end"


def _sql_inside(value: str, kind: Any, wanted: Any, path: str, row: str, depth: int) -> str:
    def inner(value: str, part: str, named: str) -> str:
        return _sql(value, kind[part], wanted[part], f"{path}.{named}", row, depth + 1)

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
    for its, one in _matched(kind["fields"], wanted["fields"], False, f"the column {path}"):
        assert its is not None
        text = _sql(
            f"{value}.{quoted(its['name'])}",
            its["type"],
            one["type"],
            f"{path}.{named(one['name'])}",
            row,
            depth + 1,
        )
        parts.append(f"{text} as {quoted(one['name'])}")
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
    wanted: Fields,
    place: Callable[[int], str] | None = None,
    parse: Parse | None = None,
) -> Any:
    import pyarrow as pa

    types = empty_table(schema_of(wanted)).schema
    columns = []
    for (its, one), target in zip(matched, types, strict=True):
        if its is None:
            columns.append(pa.nulls(len(table), target.type))
            continue
        column, path = table[its["name"]], named(one["name"])

        def cast(
            array: Any, its: Any = its, one: Any = one, target: Any = target, path: str = path
        ) -> Any:
            return _array(array, its["type"], one["type"], target.type, path, parse)

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
    return pa.table(columns, names=[one["name"] for one in wanted])


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
    array: Any, kind: Any, wanted: Any, target: Any, path: str, parse: Parse | None = None
) -> Any:
    """``array``, of the type ``kind``, as ``target``, which is ``wanted`` in Arrow. Raises: _Unfit,
    OutputInvalid.
    """
    import pyarrow as pa

    if kind == wanted:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if isinstance(kind, dict) and isinstance(wanted, dict) and kind["type"] == wanted["type"]:
        return _array_inside(array, kind, wanted, target, path, parse)
    if parse is not None and kind == "string" and isinstance(wanted, str):
        try:
            return parse(array, wanted, target)
        except pa.ArrowException:
            raise _Unfit(*_why_no_text(path, wanted)) from None
    if not _castable(kind, wanted):
        raise _Unfit(*_why(path, kind, wanted))
    try:
        cast = _cast(array, target)
        fits = _same(_cast(cast, array.type), array) and _all_below(
            array, _inexact_from(kind, wanted)
        )
    except pa.ArrowException as error:
        raise _Unfit(*_why(path, kind, wanted)) from error
    if not fits:
        raise _Unfit(*_why(path, kind, wanted))
    return cast


def _array_inside(
    array: Any, kind: Any, wanted: Any, target: Any, path: str, parse: Parse | None
) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    array = array.take(
        pa.array(np.arange(len(array)))
    )  # so that nothing of it stands outside of a slice
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if kind["type"] == "struct":
        parts = []
        for its, one in _matched(kind["fields"], wanted["fields"], False, f"the column {path}"):
            assert its is not None
            inner = target.field(one["name"]).type
            value, below = array.field(its["name"]), f"{path}.{one['name']}"
            parts.append(_array(value, its["type"], one["type"], inner, below, parse))
        named = [
            pa.field(one["name"], part.type)
            for one, part in zip(wanted["fields"], parts, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=named, mask=pa.array(nulls))
    if kind["type"] == "map":
        offsets = pa.array(array.offsets.to_numpy(), pa.int32(), mask=np.append(nulls, False))
        keys = _array(
            array.keys, kind["keyType"], wanted["keyType"], target.key_type, f"{path}.key", parse
        )
        items = _array(
            array.items,
            kind["valueType"],
            wanted["valueType"],
            target.item_type,
            f"{path}.value",
            parse,
        )
        return pa.MapArray.from_arrays(offsets, keys, items)
    ends = np.cumsum(
        pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    )  # a view of a list has no offsets
    offsets = pa.array(np.append(0, ends), pa.int64(), mask=np.append(nulls, False))
    inner = (
        kind["elementType"],
        wanted["elementType"],
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


def _same(one: Any, other: Any) -> bool:
    """Whether two arrays of numbers or times hold the same values; NaN is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(pc.all(equal, min_count=0).as_py())
