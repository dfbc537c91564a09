"""Converts the types of columns between Spark's JSON, as outputs have them, and Iceberg."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from unstuck.tasks.spec.schemas import PARTS, fields_of

_PLAIN: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_WIDENED = {"byte": "integer", "short": "integer"}  # Iceberg has no narrower integers
_SPARK = {kind: name for name, kind in _PLAIN.items()}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class NoSuchType(Exception):
    """Iceberg has no such type."""


def iceberg_schema(schema: str) -> Schema:
    """Return a schema, Spark's JSON of a struct, in Iceberg. The ids of its fields are arbitrary.

    Raises: NoSuchType, with the columns.
    """
    ids = count(1)
    fields, odd = [], []
    for field in fields_of(schema):
        try:
            fields.append(_field(field["name"], field["type"], ids))
        except NoSuchType:
            odd.append(f"{field['name']} ({json.dumps(field['type'])})")
    if odd:
        raise NoSuchType(", ".join(odd[:5]))
    return Schema(*fields)


def _field(name: str, kind: Any, ids: count[int]) -> NestedField:
    return NestedField(next(ids), name, _type(kind, ids), required=False)


def _type(kind: Any, ids: count[int]) -> IcebergType:
    if isinstance(kind, str):
        return _primitive(_WIDENED.get(kind, kind))
    parts = {part: _type(kind[part], ids) for part in PARTS if part in kind}
    match kind["type"]:
        case "struct":
            return StructType(
                *(_field(field["name"], field["type"], ids) for field in kind["fields"])
            )
        case "array":
            return ListType(next(ids), parts["elementType"], element_required=False)
        case "map":
            return MapType(
                next(ids), parts["keyType"], next(ids), parts["valueType"], value_required=False
            )
    raise NoSuchType(kind)


def _primitive(name: str) -> PrimitiveType:
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        return DecimalType(int(decimal[1]), int(decimal[2]))
    if name not in _PLAIN:
        raise NoSuchType(name)
    return _PLAIN[name]


def spark_schema(schema: Schema) -> str:
    """Return a schema of Iceberg as Spark's JSON of a struct.

    A type that Spark lacks keeps its Iceberg name, so it equals no type of an output.
    """
    return json.dumps(_spark_type(schema.as_struct()))


def _spark_type(kind: IcebergType) -> Any:
    match kind:
        case StructType():
            return {"type": "struct", "fields": [*map(_spark_field, kind.fields)]}
        case ListType():
            element = _spark_type(kind.element_type)
            return {"type": "array", "elementType": element, "containsNull": True}
        case MapType():
            return {
                "type": "map",
                "keyType": _spark_type(kind.key_type),
                "valueType": _spark_type(kind.value_type),
                "valueContainsNull": True,
            }
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case PrimitiveType():
            return _SPARK.get(kind, str(kind))
    raise NoSuchType(kind)


def _spark_field(field: NestedField) -> dict[str, Any]:
    kind = _spark_type(field.field_type)
    return {"name": field.name, "type": kind, "nullable": not field.required, "metadata": {}}
