"""Decodes Avro records, such as messages, into rows, or reports why a record is no row."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from unstuck.tasks.errors import SourceUnavailable, Unrecoverable
from unstuck.tasks.formats.json_records import arrow_schema
from unstuck.tasks.spec.schemas import schema_of
from unstuck.tasks.spec.streams.avro_schema import avro_columns

# Bytes before a record that a schema registry knows: a zero, and the number of its schema.
_HEADER = 5


def avro_rows(schema: str, values: Sequence[bytes | None]) -> tuple[Any, dict[int, str]]:
    """Decode Avro ``values`` into an Arrow table.

    Returns also, by number, why a value is no row.

    Args:
        schema: the Avro schema of the writer.
        values: records; None becomes a row of nulls.

    Raises:
        SourceUnavailable, Unrecoverable: this process cannot use ``schema``.
    """
    import pyarrow as pa

    read = _reader(schema)
    columns = arrow_schema(schema_of(avro_columns(schema)))
    rows, bad = dict[int, dict[str, Any]](), dict[int, str]()
    for number, value in enumerate(values):
        try:
            rows[number] = {} if value is None else read(value)
        except Exception as error:  # noqa: BLE001 - what a decoder raises of any bytes
            bad[number] = (
                f"it is no Avro of this schema: {error or type(error).__name__}{_hint(read, value)}"
            )
    try:
        return pa.Table.from_pylist([*rows.values()], schema=columns), bad
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for number, row in list(rows.items()):
            try:
                pa.Table.from_pylist([row], schema=columns)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                bad[number] = f"a column cannot hold its value: {error}"
                del rows[number]
    return pa.Table.from_pylist([*rows.values()], schema=columns), bad


def _reader(schema: str) -> Any:
    """A function that reads one record. Raises: as `avro_rows`."""
    try:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as error:
        raise SourceUnavailable(
            "Avro is read by fastavro, which this process does not have: install unstuck[kafka]"
        ) from error
    try:
        parsed = parse_schema(_without_uuid(json.loads(schema)))
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
        raise Unrecoverable(f"the Avro schema cannot be read: {error}") from error

    def read(value: bytes) -> Any:
        data = io.BytesIO(value)
        record = schemaless_reader(data, parsed, None)
        if (left := len(value) - data.tell()) > 0:
            raise ValueError(f"{left:,} bytes are left after the record")
        return record

    return read


def _without_uuid(schema: Any) -> Any:
    """The schema in which a UUID is text: its letters are the column, whatever they are."""
    if isinstance(schema, list):
        return [_without_uuid(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    uuid = schema.get("logicalType") == "uuid"
    return {
        key: _without_uuid(part)
        for key, part in schema.items()
        if not (uuid and key == "logicalType")
    }


def _hint(read: Any, value: bytes | None) -> str:
    if value is None or value[:1] != b"\0" or len(value) <= _HEADER:
        return ""
    try:
        read(value[_HEADER:])
    except Exception:  # noqa: BLE001 - as above
        return ""
    number = int.from_bytes(value[1:_HEADER])
    return (
        f". Before the record stands the header of a schema registry (schema {number}), which "
        "is not read yet"
    )
