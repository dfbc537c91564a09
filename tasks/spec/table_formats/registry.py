"""The table formats, by name. A new format adds one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

from unstuck.tasks.errors import WarehouseNewer
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
    return _alternatives(name for name, kind in TABLE_FORMATS.items() if mode in kind.modes)


def _alternatives(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _known(name: str) -> str:
    if name not in _NAMES:
        raise PydanticKnownError("literal_error", {"expected": _alternatives(_NAMES)})
    return name


OutputFormat = Annotated[
    str, Field(strict=True, json_schema_extra={"enum": [*_NAMES]}), AfterValidator(_known)
]
"""The value of ``format:`` of an output: `PARQUET` or the name of a table format."""
