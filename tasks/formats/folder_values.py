"""Reads values of stream columns from names of folders, such as ``day=2026-03-01/hour=01``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.formats.json_records import same_name
from unstuck.tasks.frames.casts import Parse
from unstuck.tasks.frames.spark import empty_table
from unstuck.tasks.spec.schemas import Fields, schema_of
from unstuck.tasks.spec.types import shown, type_text

_NULL = "__HIVE_DEFAULT_PARTITION__"


def folder_values(path: str, columns: Fields, parse: Parse) -> dict[str, Any]:
    """Return the values that the folders of a file give to its columns, as Arrow scalars.

    Args:
        path: path of the file, in which folders may escape characters as Hive does, such as
            ``%3A``.
        columns: columns of the stream.

    Raises:
        Unreadable: a text is no value of its column, or two folders give a column different values.
    """
    targets = empty_table(schema_of(columns)).schema
    named = {same_name(column["name"]): column for column in columns}
    values = dict[str, Any]()
    for folder in path.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        column = named.get(same_name(unquote(name)))
        if not equals or column is None:
            continue
        value = _value(folder, unquote(text), column, targets.field(column["name"]).type, parse)
        if values.setdefault(column["name"], value) != value:
            raise Unreadable(
                f"two of its folders give the column {shown(column['name'])} different values"
            )
    return values


def _value(folder: str, text: str, column: dict[str, Any], target: Any, parse: Parse) -> Any:
    """Parse the text of a folder as a value of ``column``. Raises: Unreadable."""
    import pyarrow as pa

    kind = column["type"]
    if text == _NULL:
        return pa.scalar(None, target)
    try:
        if isinstance(kind, str):
            return parse(pa.array([text], pa.string()), kind, target)[0]
    except pa.ArrowInvalid:
        pass
    raise Unreadable(
        f"its folder {folder} has no {type_text(kind)} for the column {shown(column['name'])}"
    )


def with_folder_values(table: Any, values: Mapping[str, Any], place: Any) -> Any:
    """Return ``table`` with the ``values`` of its folders in place of nulls.

    Args:
        place: word for the place of a row, as in "line 7".

    Raises:
        OutputInvalid: a row has another value in such a column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, value in values.items():
        number = table.column_names.index(name)
        column = table.column(number)
        differs = pc.not_equal(column, value) if value.is_valid else pc.is_valid(column)
        if pc.any(differs).as_py():
            row = pc.index(differs, True).as_py()
            raise OutputInvalid(
                f"{place(row)}: the column {shown(name)} holds {column[row].as_py()!r}, and its "
                f"folder says {value.as_py()!r}. Mend the file, or move it to its folder"
            )
        table = table.set_column(number, pa.field(name, value.type), pa.repeat(value, len(table)))
    return table
