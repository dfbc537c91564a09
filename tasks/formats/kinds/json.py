"""The format JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.tasks.spec.streams.file_format import FileFormat

if TYPE_CHECKING:
    from unstuck.tasks.formats.file_content import Placed
    from unstuck.tasks.formats.file_source import FileSource


class JsonFormat(FileFormat):
    """An object on each line, or one document."""

    endings = ("json", "jsonl", "ndjson")
    options = ("multiline", "encoding", "charset", "timezone")
    fixed_options = (("mode", "failfast"),)
    values_are_text = True

    def tables(self, source: FileSource) -> Iterator[Placed]:
        from unstuck.tasks.formats.json_files import read_json

        stream = source.stream
        return read_json(
            source.text,
            source.options,
            source.own_columns,
            stream.on_other_columns,
            stream.max_row_bytes,
            source.by_folder,
        )


FORMAT = JsonFormat()
