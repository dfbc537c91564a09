"""The format Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.tasks.spec.streams.file_format import FileFormat

if TYPE_CHECKING:
    from unstuck.tasks.formats.file_content import Placed
    from unstuck.tasks.formats.file_source import FileSource


class ParquetFormat(FileFormat):
    """Apache Parquet."""

    endings = ("parquet", "parq", "pq")
    place = "row"

    def tables(self, source: FileSource) -> Iterator[Placed]:
        from unstuck.tasks.formats.columnar_files import read_parquet_file

        return read_parquet_file(source.reader, source.choose, source.bound)


FORMAT = ParquetFormat()
