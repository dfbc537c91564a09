"""Avro records become the rows that were written, or are told with their reason; fastavro writes
them.
"""

from __future__ import annotations

import datetime
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from unstuck.tasks.errors import Unrecoverable
from unstuck.tasks.formats.avro_records import avro_rows

UTC = datetime.UTC
POINT = {
    "type": "record",
    "name": "point",
    "namespace": "geo",
    "fields": [{"name": "x", "type": "double"}],
}
FIELDS: dict[str, Any] = {
    "id": "long",
    "n": ["null", "int"],
    "name": ["string", "null"],
    "ok": "boolean",
    "data": "bytes",
    "hash": {"type": "fixed", "name": "md", "size": 2},
    "color": {"type": "enum", "name": "colors", "symbols": ["RED", "BLUE"]},
    "tags": {"type": "array", "items": ["null", "string"]},
    "counts": {"type": "map", "values": "long"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-millis"},
    "day": {"type": "int", "logicalType": "date"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "key": {"type": "string", "logicalType": "uuid"},
    "begin": POINT,
    "end": ["null", "geo.point"],
}
ROW: dict[str, Any] = {
    "id": 2**60,
    "n": None,
    "name": "ä",
    "ok": True,
    "data": b"\xff",
    "hash": b"ab",
    "color": "BLUE",
    "tags": ["a", None],
    "counts": {"a": 1},
    "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
    "local": datetime.datetime(2024, 3, 31, 2, 30),
    "day": datetime.date(1500, 1, 1),
    "price": Decimal("-12.30"),
    "key": "8cbf1b57-6b43-4a0e-a06b-8cfd0b7b16f5",
    "begin": {"x": 0.5},
    "end": {"x": -1.0},
}


def schema_of(**fields: Any) -> str:
    found = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "event", "fields": found})


def written(schema: str, row: dict[str, Any]) -> bytes:
    schemaless_writer(out := io.BytesIO(), parse_schema(json.loads(schema)), row)
    return out.getvalue()


def test_each_avro_type_is_decoded_and_a_message_without_a_value_has_nulls() -> None:
    schema = schema_of(**FIELDS)
    given = {**ROW, "key": uuid.UUID(ROW["key"])}
    table, bad = avro_rows(
        schema, [written(schema, given), None, written(schema, {**given, "end": None, "n": 7})]
    )
    assert bad == {}
    first, none, last = table.to_pylist()
    assert {**first, "counts": dict(first["counts"])} == ROW
    assert set(none.values()) == {None}
    assert (last["end"], last["n"]) == (None, 7)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "it is no Avro of this schema: "),
        (b"\x02", "it is no Avro of this schema: "),
        (b"\x02\x04a", "it is no Avro of this schema: "),
        (b"\x02\x02\xff", "it is no Avro of this schema: "),
        (b"\x02\x02ax", "1 bytes are left after the record"),
        (b'{"id": 1, "name": "a"}', "it is no Avro of this schema: "),
        (
            b"\x00\x00\x00\x00\x07" + b"\x02\x02a",
            "the header of a schema registry (schema 7), which is not read",
        ),
    ],
)
def test_invalid_record_bytes_are_reported_without_losing_other_rows(
    value: bytes, why: str
) -> None:
    schema = schema_of(id="long", name="string")
    good = written(schema, {"id": 1, "name": "a"})
    table, bad = avro_rows(schema, [good, value, good])
    assert table.to_pylist() == [{"id": 1, "name": "a"}] * 2
    assert [*bad] == [1]
    assert why in bad[1]


def test_a_value_too_large_for_its_column_is_reported() -> None:
    schema = schema_of(
        price={"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}
    )
    wide = schema_of(price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    table, bad = avro_rows(
        schema, [written(wide, {"price": Decimal(n)}) for n in ("1.50", "12345.67")]
    )
    assert table.to_pylist() == [{"price": Decimal("1.50")}]
    assert [*bad] == [1]


def test_an_undecodable_schema_is_reported_once_and_not_per_message() -> None:
    schema = json.dumps({"type": "record", "fields": [{"name": "id", "type": "long"}]})
    with pytest.raises(Unrecoverable, match="the Avro schema cannot be read"):
        avro_rows(schema, [b"\x02"])
