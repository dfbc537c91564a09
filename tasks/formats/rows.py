"""Collects the rows of files, as one Arrow table or as Parquet in the warehouse.

The rows of a file count only when the whole file was read.
"""

from __future__ import annotations

import io
import uuid
from typing import Any

from unstuck.tasks.warehouse.files import Files

PART_BYTES = 64 * 1024 * 1024


class Rows:
    """Rows in memory, of the files that were read and of the current file.

    Attributes:
        max_file_bytes: maximum bytes of the rows of one file, unless a stream sets another limit.
    """

    max_file_bytes = 1024**3

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._own: list[Any] = []

    def add(self, table: Any) -> None:
        """Add rows of the current file."""
        self._own.append(table)

    def keep(self) -> None:
        """Keep the rows of the current file, which was read to its end."""
        self._kept += self._own
        self._own = []

    def drop(self) -> None:
        """Drop the rows of the current file."""
        self._own = []

    def table(self, empty: Any) -> Any:
        """Return all rows as one table."""
        import pyarrow as pa

        return pa.concat_tables([empty, *self._kept], promote_options="permissive")


class Parts(Rows):
    """Rows that are written into files in ``folder`` of the warehouse, because they may be many."""

    max_file_bytes = 64 * 1024**3

    def __init__(self, files: Files, folder: str, part_bytes: int = PART_BYTES) -> None:
        """``part_bytes``: a file is written as soon as its rows take more bytes in memory."""
        super().__init__()
        self._part_bytes = part_bytes
        self._files = files
        self._folder = f"{folder}/{uuid.uuid4().hex}"  # Spark may run a task twice
        self._number = 0
        self._written: dict[str, int] = {}
        self._written_of_own: dict[str, int] = {}
        # Counted here, since asking each table again for every file would take quadratic time.
        self._bytes = self._bytes_of_own = 0

    def add(self, table: Any) -> None:
        """As `Rows.add`. Raises: OSError; as ``Files.check``."""
        super().add(table)
        self._bytes_of_own += table.nbytes
        if self._bytes_of_own > self._part_bytes:
            self._written_of_own |= self._write(self._own)
            self._own, self._bytes_of_own = [], 0

    def keep(self) -> None:
        """As `Rows.keep`. Raises: as `add`."""
        super().keep()
        self._written |= self._written_of_own
        self._bytes += self._bytes_of_own
        self._written_of_own, self._bytes_of_own = {}, 0
        if self._bytes > self._part_bytes:
            self.written()

    def drop(self) -> None:
        """As `Rows.drop`.

        The files that were written for it are removed with the staging of the attempt.
        """
        super().drop()
        self._written_of_own, self._bytes_of_own = {}, 0

    def written(self) -> dict[str, int]:
        """Return the URI and the size of each file with rows. Raises: as `add`."""
        self._written |= self._write(self._kept)
        self._kept, self._bytes = [], 0
        return self._written

    def _write(self, tables: list[Any]) -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not sum(map(len, tables)):
            return {}
        data = io.BytesIO()
        # The schema of Arrow would be known to some readers alone.
        pq.write_table(
            pa.concat_tables(tables, promote_options="permissive"), data, store_schema=False
        )
        self._number += 1
        path = f"{self._folder}/part-{self._number:05d}.parquet"
        self._files.write_durable(path, data.getvalue())
        return {self._files.uri(path): len(data.getbuffer())}
