"""The table formats, by name. A new format adds one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from unstuck.tasks.errors import WarehouseNewer
from unstuck.tasks.spec.fields import alternatives, check_choice
from unstuck.tasks.spec.table_formats.delta import DeltaFormat
from unstuck.tasks.spec.table_formats.iceberg import IcebergFormat
from unstuck.tasks.spec.table_formats.table_format import TableFormat

PARQUET = "parquet"  # not a table format: files of the warehouse, which its log names
TABLE_FORMATS: Mapping[str, TableFormat] = {
    kind.name: kind for kind in (DeltaFormat(), IcebergFormat())
}
_NAMES = (PARQUET, *TABLE_FORMATS)


def table_format(name: str) -> TableFormat:
    """Return the format that a log entry names. Raises: WarehouseNewer: it is unknown."""
    if name not in TABLE_FORMATS:
        raise WarehouseNewer(f"a later release wrote a table of the unknown format {name!r}")
    return TABLE_FORMATS[name]


def table_title(name: str, table: str) -> str:
    """Return a table in words, such as "Delta table /lake/flights", also of an unknown format."""
    kind = TABLE_FORMATS.get(name)
    return f"{name if kind is None else kind.title} table {table}"


def formats_with(mode: str) -> str:
    """Return the names of the formats that support ``mode``, as alternatives."""
    return alternatives(name for name, kind in TABLE_FORMATS.items() if mode in kind.modes)


OutputFormat = Annotated[
    str,
    Field(json_schema_extra={"enum": [*_NAMES]}),
    BeforeValidator(lambda name: check_choice(name, _NAMES)),
]
"""The value of ``format:`` of an output: `PARQUET` or the name of a table format."""
