"""The format text: a row for each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unstuck.tasks.spec.streams.file_format import FileFormat

if TYPE_CHECKING:
    from unstuck.tasks.formats.file_content import Placed
    from unstuck.tasks.formats.file_source import FileSource


class TextFormat(FileFormat):
    """Lines of text in one column."""

    endings = ("txt", "text", "log")
    options = ("encoding", "charset")
    has_folder_values = False

    def check_columns(self, types: Mapping[str, Any]) -> None:
        if [*types.values()] != ["string"]:
            raise ValueError("a file of text has one column, of the type STRING")

    def tables(self, source: FileSource) -> Iterator[Placed]:
        import pyarrow as pa

        from unstuck.tasks.formats.file_content import lines_of

        name = source.own_columns[0]["name"]
        max_line = source.stream.max_row_bytes
        for first, lines in lines_of(source.text, source.options.encoding, max_line):
            yield pa.table({name: pa.array(lines, pa.binary()).cast(pa.string())}), first.__add__


FORMAT = TextFormat()
