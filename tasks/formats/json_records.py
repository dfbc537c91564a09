"""Convert JSON records to rows of the declared columns without loss, or report the reason.

Arrow's own JSON reader is not used: it reads two objects on a line as two rows, and crashes on a
line ``null``.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import accumulate, chain, product
from typing import Any, Literal

from unstuck.tasks.frames.spark import empty_table
from unstuck.tasks.spec.schemas import Fields, schema_of
from unstuck.tasks.spec.types import shown, type_text

_LONG = 120  # characters of a value or a reason, in a text
_INEXACT_FROM = 2**53  # whole numbers from here on are the same float, as in `tasks.frames.casts`
_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")
_JSON = {"NoneType": "null", "bool": "a boolean", "int": "a number", "Decimal": "a number"}
_JSON |= {"str": "text", "list": "a list", "dict": "an object"}


def json_columns(
    fields: Fields, values: Iterable[bytes | None], other: Literal["fail", "allow"] = "fail"
) -> tuple[Any, dict[int, str]]:
    """Convert JSON ``values`` to an Arrow table.

    Returns also, by number, why a value is no row.

    Args:
        values: JSON objects in UTF-8; None becomes a row of nulls.
        other: with ``allow``, a missing field is null and an additional field is left out.
    """
    decoder, bad, rows = json_decoder(), dict[int, str](), dict[int, Any]()
    for number, value in enumerate(values):
        try:
            rows[number] = None if value is None else decoder.decode(value.decode())
            if value is not None and rows[number] is None:
                raise ValueError("an object is expected, and this is null")
        except (ValueError, RecursionError) as error:
            rows.pop(number, None)
            bad[number] = _short(error) or type(error).__name__
    table, unfit = table_of_rows(fields, rows, other)
    return table, {**bad, **unfit}


def json_decoder() -> json.JSONDecoder:
    """Return a JSON decoder that keeps all digits of numbers with a point or an exponent.

    Its errors are ValueError and RecursionError.
    """
    return _Decoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_each_once)


class _Decoder(json.JSONDecoder):
    """Decodes JSON, and skips white space only if there is some.

    For a small value this saves a quarter of the time.
    """

    def decode(self, s: str, *args: Any) -> Any:
        try:
            return self._decoded(s, *args)
        except InvalidOperation:
            raise ValueError("a number has an exponent of too many digits") from None

    def _decoded(self, s: str, *args: Any) -> Any:
        try:
            value, end = self.raw_decode(s)
        except ValueError:
            return super().decode(s, *args)
        return value if end == len(s) else super().decode(s, *args)


def table_of_rows(
    fields: Fields,
    decoded: Mapping[int, Any],
    other: Literal["fail", "allow"] = "fail",
    optional: Collection[str] = (),
) -> tuple[Any, dict[int, str]]:
    """Convert decoded objects, by row number, like `json_columns`.

    Args:
        optional: columns that an object may lack.
    """
    schema = arrow_schema(schema_of(fields))
    texts = {field["name"]: type_text(field["type"]) for field in fields}
    bad, rows = dict[int, str](), dict[int, dict[str, Any]]()
    for number, row in decoded.items():
        if why := _wrong_object(row, texts.keys(), other, optional):
            bad[number] = why
        else:
            rows[number] = row or {}

    def table() -> Any:
        return _table(
            schema, [[row.get(name) for row in rows.values()] for name in schema.names], other
        )

    try:
        return table(), bad
    except _REFUSALS:
        refused = dict(_refused_rows(rows, schema, texts, other))
        rows = {number: row for number, row in rows.items() if number not in refused}
    return table(), bad | refused


def _wrong_object(row: Any, names: Set[str], other: str, optional: Collection[str] = ()) -> str:
    """Why a decoded value is no row of these columns; empty if it is one."""
    if row is None:
        return ""
    if not isinstance(row, dict):
        return f"an object is expected, and this is {_JSON[type(row).__name__]}"
    if other == "allow":
        return _near(row, names) if row else ""
    has_its_names = names - set(optional) <= row.keys() <= names
    return "" if has_its_names else _other_names(row, names, optional)


def _refused_rows(
    rows: Mapping[int, Mapping[str, Any]], schema: Any, texts: Mapping[str, str], other: str
) -> Iterator[tuple[int, str]]:
    """The rows with a value that its column cannot hold; of several such values the last."""
    columns = [*zip(schema.names, schema.types, strict=True)]
    for (number, row), (name, kind) in product(rows.items(), columns):
        value = row.get(name)
        try:
            _array([value], kind, other)
        except _REFUSALS as error:
            text = _DECIMAL.sub(r"\1", repr(value))
            at = f"the column {shown(name)} ({texts[name]})"
            yield number, f"{at} cannot hold {_short(text)}: {_short(error)}"


def _table(schema: Any, columns: Iterable[Sequence[Any]], other: str) -> Any:
    import pyarrow as pa

    arrays = [
        _array(values, kind, other) for values, kind in zip(columns, schema.types, strict=True)
    ]
    return pa.table(arrays, schema=schema)


@cache
def arrow_schema(schema: str) -> Any:
    """Return the Arrow schema for a schema in Spark's JSON."""
    return empty_table(schema).schema


_REFUSALS = (ValueError, TypeError, ArithmeticError)  # Arrow's errors of values are among them


def _array(values: Sequence[Any], kind: Any, other: str) -> Any:
    """Convert JSON values to an Arrow array.

    Raises: one of ``_REFUSALS``: a value does not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    convert, allowed = next((convert, allowed) for of, convert, allowed in _kinds() if of(kind))
    _check_types(values, kind, allowed)
    if convert is not None:
        return convert(values, kind, other)
    convert_number = _NUMBERS.get("int" if types.is_integer(kind) else str(kind))
    if convert_number is not None:
        values = [
            convert_number(value) if isinstance(value, Decimal) else value for value in values
        ]
    array = pa.array(values, kind)
    if types.is_floating(kind) and pc.any(pc.is_inf(array)).as_py():
        raise ValueError("it is too large")
    return array


def _check_types(values: Sequence[Any], kind: Any, allowed: Collection[type]) -> None:
    """Check the types of values. Raises: TypeError: one is neither null nor ``allowed``."""
    from pyarrow import types

    for python_type in {*map(type, values)} - {type(None)}:
        if python_type not in allowed:
            expected = " or ".join(dict.fromkeys(_JSON[accepted.__name__] for accepted in allowed))
            expected = "a whole number" if types.is_integer(kind) else expected
            raise TypeError(f"{expected} is expected, and this is {_JSON[python_type.__name__]}")


def _whole(number: Decimal) -> int:
    """Convert a number with a point or an exponent to an integer.

    The limit is that of `columns:` for floats.
    """
    if number.copy_abs() >= _INEXACT_FROM:
        raise ValueError(
            f"from {_INEXACT_FROM} on, write a whole number without a point and an exponent"
        )
    if number != number.to_integral_value():
        raise ValueError("a whole number is expected")
    return int(number)


_NUMBERS: dict[str, Callable[[Decimal], object]] = {"int": _whole, "float": float, "double": float}


@cache
def _kinds() -> list[tuple[Callable[[Any], bool], Callable[..., Any] | None, tuple[type, ...]]]:
    """By Arrow type: how an array is made, if not by ``pa.array``, and what JSON may give."""
    from pyarrow import types

    return [
        (types.is_string, None, (str,)),
        (types.is_integer, None, (int, Decimal)),
        (types.is_floating, None, (int, Decimal)),
        (types.is_boolean, None, (bool,)),
        (types.is_decimal, None, (int, Decimal)),
        (types.is_date, _of_text, (str,)),
        (types.is_timestamp, _of_text, (str,)),
        (types.is_binary, _binary, (str,)),
        (types.is_map, _maps, (dict,)),
        (types.is_list, _lists, (list,)),
        (types.is_struct, _structs, (dict,)),
    ]


def _of_text(values: Sequence[Any], kind: Any, other: str) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string()).cast(kind)


def _binary(values: Sequence[Any], kind: Any, other: str) -> Any:
    import pyarrow as pa

    return pa.array(
        [None if text is None else base64.b64decode(text, validate=True) for text in values], kind
    )


def _lists(values: Sequence[Any], kind: Any, other: str) -> Any:
    import pyarrow as pa

    inner = _array(
        [*chain.from_iterable(elements for elements in values if elements is not None)],
        kind.value_type,
        other,
    )
    return pa.ListArray.from_arrays(_offsets(values), inner, type=kind)


def _maps(values: Sequence[Any], kind: Any, other: str) -> Any:
    import pyarrow as pa

    some = [entries for entries in values if entries is not None]
    keys = _array([*chain.from_iterable(some)], kind.key_type, other)
    items = _array(
        [*chain.from_iterable(entries.values() for entries in some)], kind.item_type, other
    )
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)


def _structs(values: Sequence[Any], kind: Any, other: str) -> Any:
    import pyarrow as pa

    fields = list(kind)
    names = dict.fromkeys(field.name for field in fields).keys()
    for record in values:
        if wrong := _wrong_object(record, names, other):
            raise ValueError(wrong)
    mask = pa.array([record is None for record in values], pa.bool_())
    parts = [
        _array([record and record.get(field.name) for record in values], field.type, other)
        for field in fields
    ]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _offsets(values: Sequence[Any]) -> Any:
    """Where each list begins; null for a null one."""
    import pyarrow as pa

    ends = [
        *accumulate((0 if elements is None else len(elements) for elements in values), initial=0)
    ]
    nulls = [*(elements is None for elements in values), False]
    return pa.array(
        [None if null else end for end, null in zip(ends, nulls, strict=True)], pa.int32()
    )


def _other_names(
    row: Mapping[str, Any], names: Iterable[str], optional: Collection[str] = ()
) -> str:
    lacks = ", ".join(shown(name) for name in names if name not in row and name not in optional)
    more = ", ".join(shown(name) for name in row if name not in {*names})
    differs = [
        f"it lacks {lacks}" if lacks else "",
        f"it has {more}, which the schema does not name" if more else "",
    ]
    return _short(" and ".join(filter(None, differs))) + "; on_other_columns: allow lets it pass"


def _near(row: Mapping[str, Any], names: Set[str]) -> str:
    """Return why a missing name is not null; empty if no similar name is present.

    CSV and Parquet files may spell the same name in another way.
    """
    if names <= row.keys():
        return ""
    lacks = {same_name(name): name for name in names - row.keys()}
    similar = next((name for name in row if same_name(name) in lacks), None)
    return (
        ""
        if similar is None
        else f"it has {shown(similar)}, and the schema says {shown(lacks[same_name(similar)])}"
    )


def same_name(name: str) -> str:
    """Return a key that is equal for names that Spark and people consider the same."""
    return unicodedata.normalize("NFC", name).lower().strip()


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("it has a name twice")
    return row


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"
