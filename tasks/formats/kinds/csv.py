"""The format CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unstuck.tasks.spec.streams.file_format import FileFormat

if TYPE_CHECKING:
    from unstuck.tasks.formats.file_content import Placed
    from unstuck.tasks.formats.file_source import FileSource


class CsvFormat(FileFormat):
    """Comma-separated values, as RFC 4180 defines them."""

    endings = ("csv", "tsv")
    options = (
        "header",
        "sep",
        "delimiter",
        "quote",
        "escape",
        "nullvalue",
        "encoding",
        "charset",
        "timezone",
        "decimal",
        "thousands",
    )
    fixed_options = (("multiline", "true"), ("mode", "failfast"))
    values_are_text = True

    def check_columns(self, types: Mapping[str, Any]) -> None:
        nested = [name for name, kind in types.items() if not isinstance(kind, str)]
        if nested:
            raise ValueError(
                f"a file of CSV holds no lists, maps and structs, as the column {nested[0]} is to "
                "be"
            )

    def tables(self, source: FileSource) -> Iterator[Placed]:
        from unstuck.tasks.formats.csv_files import read_csv

        max_record = source.stream.max_row_bytes
        columns = source.columns_of_content
        for table, line_of in read_csv(source.text, source.options, columns, max_record):
            yield table.select(source.choose(table.column_names)), line_of


FORMAT = CsvFormat()
