"""The format ORC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.tasks.spec.streams.file_format import FileFormat

if TYPE_CHECKING:
    from unstuck.tasks.formats.file_content import Placed
    from unstuck.tasks.formats.file_source import FileSource


class OrcFormat(FileFormat):
    """Apache ORC."""

    endings = ("orc",)
    place = "row"

    def tables(self, source: FileSource) -> Iterator[Placed]:
        from unstuck.tasks.formats.columnar_files import read_orc

        instants = {
            column["name"].lower() for column in source.columns if column["type"] == "timestamp"
        }
        return read_orc(source.reader, source.choose, source.bound, instants, source.zone)


FORMAT = OrcFormat()
