"""Decodes an arrived file: columns by name, values without loss, errors with their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.formats.arrived import ArrivedFile, shown_path
from unstuck.tasks.formats.bounds import Bound
from unstuck.tasks.formats.file_content import Unreadable, opened
from unstuck.tasks.formats.file_source import FileSource, without
from unstuck.tasks.formats.folder_values import folder_values, with_folder_values
from unstuck.tasks.formats.json_records import same_name
from unstuck.tasks.frames.casts import cast_of_file
from unstuck.tasks.frames.text_values import NumberForm, parser
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.file_format import file_format
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.streams.stream_options import FILE_COLUMN, file_options


def decoded(file: ArrivedFile, stream: StreamInput, zone: str, max_bytes: int) -> Iterator[Any]:
    """Yield the rows of one file with the columns of the stream, one part at a time.

    Args:
        zone: time zone of local times that become instants, unless an option sets another.
        max_bytes: maximum bytes of the file, decompressed and decoded.

    Raises:
        Gone: the file was removed or has changed.
        Unreadable: it cannot be read as the spec says.
        OSError: the store failed.
    """
    columns = declared(stream.columns)
    options = file_options(stream.format, stream.options)
    zone = options.zone or zone
    numbers = NumberForm(options.decimal, options.thousands)
    kind = file_format(stream.format)
    parse = parser(zone, numbers) if kind.values_are_text else None
    with opened(file) as reader:
        own = without(columns, (FILE_COLUMN,))
        by_folder = folder_values(file.path, own, parser(zone)) if kind.has_folder_values else {}
        bound = Bound(file, max_bytes, stream.max_row_bytes)
        source = FileSource(reader, bound, stream, options, columns, zone, by_folder)
        for table, line_of in kind.tables(source):
            bound.check_table(table, line_of)
            wrong = list[int]()

            def place(row: int, line_of: Any = line_of, wrong: list[int] = wrong) -> str:
                wrong.append(line_of(row))
                return f"{kind.place} {wrong[0]:,}"

            try:
                rows = cast_of_file(_matched(table, file, columns), columns, place, parse)
                yield with_folder_values(rows, by_folder, place)
            except OutputInvalid as error:
                raise Unreadable(str(error), wrong[0] if wrong else 0) from error


def _matched(table: Any, file: ArrivedFile, fields: Fields) -> Any:
    """Return ``table`` with the columns of ``fields``, in their order.

    Columns missing from the table get type ``null``.
    """
    import pyarrow as pa

    have = {same_name(name): table.column(number) for number, name in enumerate(table.column_names)}
    columns = []
    for field in fields:
        column = have.get(same_name(field["name"]))
        if column is None and field["name"] == FILE_COLUMN:
            path = pa.scalar(shown_path(file.path))
            column = pa.repeat(path, len(table))
        columns.append(pa.nulls(len(table)) if column is None else column)
    return pa.table(columns, names=[field["name"] for field in fields])
