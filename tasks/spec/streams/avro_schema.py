"""Convert an Avro schema in JSON to columns with types that all readers know."""

from __future__ import annotations

import json
from typing import Any

from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.types import MAX_DIGITS, field

_DEPTH = 20
_PLAIN = {
    **{name: name for name in ("boolean", "long", "float", "double", "string")},
    "int": "integer",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}


def avro_columns(schema: str) -> Fields:
    """Return the columns of the records of ``schema``.

    Raises: ValueError: it is no record, or has a type that is not read.
    """
    try:
        record = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"format: avro wants an Avro schema in JSON as schema:, and this is none: {error}"
        ) from None
    kind = _Types().kind(record, 0)
    if not isinstance(kind, dict) or kind["type"] != "struct":
        raise ValueError(
            "the Avro schema must be that of a record, whose fields become the columns"
        )
    return list(kind["fields"])


class _Types:
    """Converts a schema from its beginning to its end. A named type can be referenced later."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def kind(self, schema: Any, depth: int) -> Any:
        """A type in Spark's JSON. Raises: ValueError."""
        if depth > _DEPTH:
            raise ValueError(
                f"the Avro schema is more than {_DEPTH} levels deep, or a type is part of itself"
            )
        match schema:
            case list():
                return self.kind(_branch(schema), depth)
            case {"type": dict() | list() as inner}:
                return self.kind(inner, depth + 1)
            case {"type": str(name)}:
                spark_type = self._of(name, schema, depth)
            case str(name):
                return self._of(name, {}, depth)
            case _:
                raise ValueError(f"{_short(schema)} is no type of Avro")
        if "name" in schema and name in ("record", "enum", "fixed"):
            self._named[schema["name"]] = spark_type
            self._named[f"{schema.get('namespace', '')}.{schema['name']}"] = spark_type
        return spark_type

    def _of(self, name: str, schema: dict[str, Any], depth: int) -> Any:
        logical = schema.get("logicalType", "decimal")
        if logical != "decimal":
            if logical not in _LOGICAL:
                raise ValueError(
                    f"values of Avro's {logical} are not read; there are: {', '.join(_LOGICAL)}, "
                    "decimal"
                )
            return _LOGICAL[logical]
        match name:
            case "bytes" | "fixed" if "logicalType" in schema:
                return _decimal(schema)
            case "record":
                return self._record(schema, depth)
            case "array":
                element = self.kind(schema.get("items"), depth + 1)
                return {"type": name, "elementType": element, "containsNull": True}
            case "map":
                value = self.kind(schema.get("values"), depth + 1)
                kinds = {"keyType": "string", "valueType": value}
                return {"type": name, **kinds, "valueContainsNull": True}
        if name not in self._named and name not in _PLAIN:
            raise ValueError(f"{name[:100]!r} is no type of Avro that becomes a column")
        return self._named.get(name) or _PLAIN[name]

    def _record(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(
            isinstance(record_field, dict) and "name" in record_field for record_field in fields
        ):
            raise ValueError(f"a record of Avro wants fields, not {_short(schema)}")
        columns = [
            field(str(record_field["name"]), self.kind(record_field.get("type"), depth + 1))
            for record_field in fields
        ]
        return {"type": "struct", "fields": columns}


def _branch(union: list[Any]) -> Any:
    """Return the type of a union beside null. Raises: ValueError: it has several, or none."""
    branches = [branch for branch in union if branch != "null"]
    if len(branches) != 1:
        raise ValueError(f"a union of Avro wants one type beside null, not {_short(union)}")
    return branches[0]


def _decimal(schema: dict[str, Any]) -> str:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if not (
        isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits <= MAX_DIGITS
    ):
        raise ValueError(
            f"a decimal of Avro wants a precision up to {MAX_DIGITS}, not {_short(schema)}"
        )
    return f"decimal({digits},{scale})"


def _short(schema: Any) -> str:
    return json.dumps(schema)[:100]
