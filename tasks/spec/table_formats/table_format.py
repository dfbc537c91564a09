"""Define what every process knows of a table format: its words, its places, and its scans."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class TableFormat(Protocol):
    """A format of tables outside the warehouse.

    Publishing needs the `TableWriter` of the format as well.

    Attributes:
        name: the value of ``format:`` in specs and in the warehouse log.
        title: the name of the format in sentences, such as "Delta".
        package: the Python package that writes the tables.
        extra: the extra of Unstuck that installs ``package``.
        modes: the values of ``mode:`` that the format supports.
        readers: programs that read the tables.
        restore_hint: how a user restores an older version of a table.
        compact_hint: how a user compacts a table.
    """

    name: str
    title: str
    package: str
    extra: str
    modes: Collection[str]
    readers: str
    restore_hint: str
    compact_hint: str

    def place_of(self, path: str) -> str:
        """Return the normal form of ``path:``, equal for every spelling of one table.

        Raises: ValueError: it names no table of this format.
        """
        ...

    def in_duckdb(self, table: str) -> str:
        """Return the query of DuckDB that reads all rows of a table."""
        ...

    def in_spark(self, table: str) -> str:
        """Return the part of Spark's CREATE VIEW that follows the name of the view."""
        ...
