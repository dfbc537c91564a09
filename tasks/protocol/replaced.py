"""Describe the partitions that a package replaced, with row counts before and after (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from pydantic.dataclasses import dataclass

from unstuck.tasks.json_fields import DEFERRED

MOST = 20  # partitions that are named of one dataset


class PartitionRows(Protocol):
    """Rows of one partition, as a file has them."""

    @property
    def rows(self) -> int: ...

    @property
    def partition(self) -> Mapping[str, str | None]: ...


@dataclass(frozen=True, slots=True, config=DEFERRED)
class ReplacedPartition:
    """A partition whose rows were replaced.

    Attributes:
        partition: its values by column.
        before: number of its rows before.
        after: number of its rows after.
    """

    partition: dict[str, str | None]
    before: int
    after: int

    @property
    def shrank(self) -> bool:
        """Whether it has lost more than half of its rows."""
        return self.after * 2 < self.before

    def __str__(self) -> str:
        return f"{partition_text(self.partition)}: {self.before:,} → {self.after:,} rows"


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Replaced:
    """The partitions of a dataset that one package has replaced.

    Attributes:
        most: at most `MOST` of them: those that lost more than half of their rows, and those that
            changed most.
        count: number of replaced partitions.
        shrunk: number of these that lost more than half of their rows.
    """

    most: list[ReplacedPartition]
    count: int
    shrunk: int

    def text(self, *, shrunk: bool = False, most: int = MOST) -> str:
        """Return the partitions in words.

        ``shrunk``: only those that lost more than half of their rows.
        """
        named = [str(partition) for partition in self.most if partition.shrank or not shrunk][:most]
        more = (self.shrunk if shrunk else self.count) - len(named)
        return ", ".join([*named, *([f"and {more:,} more"] if more else [])])


def replaced(
    stood: Iterable[PartitionRows], removed: Iterable[PartitionRows], added: Iterable[PartitionRows]
) -> Replaced | None:
    """Return the partitions of ``stood`` with ``removed`` rows; None if none lost any."""
    before, change = (
        Counter[tuple[tuple[str, str | None], ...]](),
        Counter[tuple[tuple[str, str | None], ...]](),
    )
    gone = set()
    for part in stood:
        before[tuple(part.partition.items())] += part.rows
    for part in removed:
        change[key := tuple(part.partition.items())] -= part.rows
        gone.add(key)
    for part in added:
        change[tuple(part.partition.items())] += part.rows
    partitions = [
        ReplacedPartition(dict(key), before[key], before[key] + change[key])
        for key in gone
        if key and before[key]
    ]
    partitions.sort(
        key=lambda partition: (
            not partition.shrank,
            -abs(partition.after - partition.before),
            str(partition),
        )
    )
    if not partitions:
        return None
    shrunk = sum(partition.shrank for partition in partitions)
    return Replaced(partitions[:MOST], len(partitions), shrunk)


def partition_text(partition: Mapping[str, str | None]) -> str:
    """A partition for people: ``day=2013-01-02, carrier=null``."""
    return ", ".join(
        f"{column}={'null' if value is None else value}" for column, value in partition.items()
    )
