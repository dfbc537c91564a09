"""Limits the size of a file after decompression and decoding.

A few compressed bytes may expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.file_content import Unreadable, beyond_row


@dataclass(slots=True)
class Bound:
    """The maximum bytes of a file and of each row.

    Attributes:
        max_bytes: maximum bytes of the file, decompressed and decoded.
        count: bytes of the rows so far.
    """

    file: ArrivedFile
    max_bytes: int
    max_row_bytes: int
    count: int = 0

    def check(self, count: int) -> None:
        """Check the size of a file. Raises: Unreadable: ``count`` bytes are too many."""
        if count > self.max_bytes:
            raise Unreadable(
                f"the file has {self.file.size:,} bytes, and unpacked it has {count:,} or more, "
                f"beyond the bound of {self.max_bytes:,}. If that is right, say max_file_bytes:"
            )

    def check_rows(self, rows: int, schema: Any) -> None:
        """Check the minimum size of a number of rows, before they are decoded.

        Raises: Unreadable.
        """
        self.check(rows * sum(map(_least_bytes, schema.types)))

    def check_table(self, table: Any, line_of: Callable[[int], int]) -> None:
        """Check the size of ``table``, together with the rows before it. Raises: Unreadable."""
        self.count += table.nbytes
        self.check(self.count)
        row = _first_row_beyond(table, self.max_row_bytes)
        if row is not None:
            raise beyond_row("row", self.max_row_bytes, line_of(row))


class Unpacked:
    """A stream of the decompressed bytes of a file.

    It raises `Unreadable` if there are too many.
    """

    def __init__(self, stream: Any, bound: Bound) -> None:
        self._stream, self._bound = stream, bound
        self._count = 0

    def read(self, size: int) -> bytes:
        """Read bytes. Raises: Unreadable; and as the stream."""
        data: bytes = self._stream.read(size)
        self._count += len(data)
        self._bound.check(self._count)
        return data


def _least_bytes(kind: Any) -> int:
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:  # a text, a list or a map
        return 4


def _first_row_beyond(table: Any, bound: int) -> int | None:
    """Return the first row with more than ``bound`` bytes, by binary search."""
    parts = [(0, len(table))]
    while parts:
        begin, end = parts.pop()
        if table.slice(begin, end - begin).nbytes <= bound:
            continue
        if end - begin == 1:
            return begin
        middle = (begin + end) // 2
        parts += [(middle, end), (begin, middle)]
    return None
