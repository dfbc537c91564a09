"""Describe the partitions that a package replaced, with row counts before and after (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from pydantic.dataclasses import dataclass

from unstuck.tasks.json_fields import DEFERRED

MAX_EXAMPLES = 20  # of the partitions of one dataset
PartitionKey = frozenset[tuple[str, str | None]]
"""The values of a partition by column."""


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
        examples: at most `MAX_EXAMPLES` of them: those that lost more than half of their rows
            first, then those that changed most.
        count: number of replaced partitions.
        shrunk: number of these that lost more than half of their rows.
    """

    examples: list[ReplacedPartition]
    count: int
    shrunk: int

    def text(self, *, shrunk: bool = False, limit: int = MAX_EXAMPLES) -> str:
        """Return the partitions in words.

        Args:
            shrunk: only those that lost more than half of their rows.
            limit: number of partitions that are named.
        """
        shown = [str(partition) for partition in self.examples if partition.shrank or not shrunk]
        named = shown[:limit]
        more = (self.shrunk if shrunk else self.count) - len(named)
        if more:
            named.append(f"and {more:,} more")
        return ", ".join(named)


def replaced(
    previous: Iterable[PartitionRows],
    removed: Iterable[PartitionRows],
    added: Iterable[PartitionRows],
) -> Replaced | None:
    """Return the partitions of ``previous`` with ``removed`` rows; None if none lost any."""
    before, change = Counter[PartitionKey](), Counter[PartitionKey]()
    affected: dict[PartitionKey, Mapping[str, str | None]] = {}
    for file in previous:
        before[_key(file.partition)] += file.rows
    for file in removed:
        key = _key(file.partition)
        change[key] -= file.rows
        affected.setdefault(key, file.partition)
    for file in added:
        change[_key(file.partition)] += file.rows
    partitions = [
        ReplacedPartition(dict(values), before[key], before[key] + change[key])
        for key, values in affected.items()
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
    return Replaced(partitions[:MAX_EXAMPLES], len(partitions), shrunk)


def _key(partition: Mapping[str, str | None]) -> PartitionKey:
    """Return the same key for files whose columns have another order."""
    return frozenset(partition.items())


def partition_text(partition: Mapping[str, str | None]) -> str:
    """A partition for people: ``day=2013-01-02, carrier=null``."""
    return ", ".join(
        f"{column}={'null' if value is None else value}" for column, value in partition.items()
    )
