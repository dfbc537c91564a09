"""JSON records: one object is one row, a value fits its column without loss, and everything else is
told.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from unstuck.tasks.formats.json_records import json_columns
from unstuck.tasks.spec.types import field, parse_type


def read(
    kind: str, *values: str | bytes | None, other: Any = "fail"
) -> tuple[list[Any], dict[int, str]]:
    """The column ``a`` of this type, of JSON texts."""
    given = [value.encode() if isinstance(value, str) else value for value in values]
    table, bad = json_columns([field("a", parse_type(kind))], given, other)
    return table.column("a").to_pylist(), bad


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "20.0", 20),
        ("bigint", "-9007199254740991.0", 1 - 2**53),
        ("tinyint", "1.2e1", 12),
        ("array<int>", "[2.0, -0.0]", [2, 0]),
        ("double", "0.1", 0.1),
        ("double", "1", 1.0),
        ("double", "1.5e3", 1500.0),
        ("boolean", "true", True),
        ("string", '"\\u00fc\\n"', "ü\n"),
        ("decimal(10, 2)", "1.10", Decimal("1.10")),
        ("decimal(10, 2)", "7", Decimal("7.00")),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        (
            "timestamp",
            '"2024-02-29T01:00:00.123456+02:00"',
            datetime(2024, 2, 28, 23, 0, 0, 123456, UTC),
        ),
        ("timestamp_ntz", '"2024-02-29 01:00:00"', datetime(2024, 2, 29, 1)),
        ("binary", '"/w=="', b"\xff"),
        ("array<int>", "[1, null]", [1, None]),
        ("array<date>", "[]", []),
        ("map<string, double>", '{"x": 1, "y": null}', [("x", 1.0), ("y", None)]),
        ("struct<x: int, y: array<string>>", '{"x": 1, "y": ["a"]}', {"x": 1, "y": ["a"]}),
    ],
)
def test_a_matching_json_value_is_read_unchanged(kind: str, text: str, expected: Any) -> None:
    rows, bad = read(kind, '{"a": null}', f'{{"a": {text}}}', None, f'{{"a":{text}}}\n')
    assert rows == [None, expected, None, expected]
    assert bad == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("bigint", "1.5"),
        ("bigint", "1.00000000000000000000001"),
        ("bigint", "9007199254740992.0"),
        ("bigint", "-9.007199254740993e15"),
        ("bigint", "1e999999999"),
        ("bigint", "1e-999999999"),
        ("bigint", "1e9999999999999999999"),
        ("tinyint", "128.0"),
        ("bigint", '"1"'),
        ("bigint", "true"),
        ("bigint", "9223372036854775808"),
        ("tinyint", "128"),
        ("double", "true"),
        ("double", "1e400"),
        ("double", "9007199254740993"),
        ("double", "NaN"),
        ("float", "1e40"),
        ("string", "1"),
        ("string", '"\\ud800"'),
        ("boolean", "1"),
        ("decimal(4, 2)", "1.555"),
        ("decimal(4, 2)", "100"),
        ("date", "18000"),
        ("date", '"2023-02-29"'),
        ("timestamp", '"2024-02-29T01:00:00"'),
        ("timestamp", '"2024-02-29T01:00:00.1234567Z"'),
        ("timestamp_ntz", '"2024-02-29T01:00:00+01:00"'),
        ("binary", '"ä"'),
        ("array<string>", '"ab"'),
        ("array<int>", '["1"]'),
        ("struct<x: int>", "[1]"),
        ("struct<x: int>", '{"x": 1, "y": 2}'),
        ("struct<x: int>", "{}"),
        ("map<string, int>", '[["x", 1]]'),
    ],
)
def test_a_mismatched_value_is_reported_and_other_rows_are_kept(kind: str, text: str) -> None:
    rows, bad = read(kind, '{"a": null}', f'{{"a": {text}}}', '{"a": null}')
    assert rows == [None, None]
    assert [*bad] == [1]


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " ",
            "null",
            "1",
            "[1]",
            '{"a": 1}{"a": 2}',
            '{"a": 1',
            ',"a": 2}',
            '{"a": 1} x',
            b'{"a": "\xff"}',
        ),
        *(
            "[" * 100_000,
            '{"a": 1, "a": 2}',
            '{"b": 1, "a": 2}',
            "{}",
            '\ufeff{"a": 1}',
            '{"a": 1}'.encode("utf-16"),
        ),
    ],
)
def test_an_object_without_declared_columns_is_reported_and_gives_no_row(
    value: str | bytes,
) -> None:
    rows, bad = read("bigint", '{"a": 1}', value, '{"a": 2}')
    assert rows == [1, 2]
    assert [*bad] == [1]
    assert bad[1]


def test_additional_names_are_accepted_if_allowed() -> None:
    assert read("bigint", '{"b": 1}', '{"a": 2, "b": 3}', other="allow") == ([None, 2], {})
    assert read("struct<x: int>", '{"a": {"y": 1}}', other="allow") == ([{"x": None}], {})


def test_bad_values_of_several_columns_are_each_reported() -> None:
    fields = [field("a", "long"), field("b", "string")]
    table, bad = json_columns(
        fields,
        [
            b'{"a": 1, "b": "x"}',
            b'{"a": "x", "b": "x"}',
            b'{"a": 1, "b": 1}',
            b'{"a": "x", "b": 1}',
        ],
    )
    assert table.to_pylist() == [{"a": 1, "b": "x"}]
    assert bad.pop(3)
    assert bad == {
        1: "the column a (bigint) cannot hold 'x': a whole number is expected, and this is text",
        2: "the column b (string) cannot hold 1: text is expected, and this is a number",
    }


def test_an_empty_input_has_the_declared_columns() -> None:
    table, bad = json_columns([field("a", "long")], [])
    assert (table.column_names, table.num_rows, bad) == (["a"], 0, {})
