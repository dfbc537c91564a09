"""Divide a stream among the members of a fork, by the path of a file or by the partition alone.

So members need not agree on a list: whenever each of them looks, a file is of one member.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the member ``number`` of a fork that has ``of`` members; without a fork: all."""

    number: int = 0
    of: int = 1

    def has(self, source: str | int) -> bool:
        """Return whether a file, by its path, or a partition belongs to this share."""
        number = zlib.crc32(source.encode()) if isinstance(source, str) else source
        return number % self.of == self.number


WHOLE = Share()
