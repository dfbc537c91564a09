"""The partitions that a package replaced, counted from the files of both versions."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.tasks.protocol.replaced import ReplacedPartition, replaced


@dataclass(frozen=True)
class File:
    partition: dict[str, str | None]
    rows: int


def test_the_order_of_columns_in_a_file_does_not_matter() -> None:
    old = File({"day": "2013-01-02", "carrier": None}, 100)
    new = File({"carrier": None, "day": "2013-01-02"}, 40)
    found = replaced([old], [File(dict(new.partition), old.rows)], [new])
    assert found is not None
    assert found.examples == [ReplacedPartition(old.partition, before=100, after=40)]
    assert found.shrunk == 1


def test_the_partitions_that_shrank_most_come_first_and_the_others_are_counted() -> None:
    days = [f"2013-01-{day:02}" for day in range(1, 26)]
    before = [File({"day": day}, 100) for day in days]
    after = [File({"day": day}, number) for number, day in enumerate(days, 60)]
    after[7] = File({"day": days[7]}, 3)
    found = replaced(before, before, after)
    assert found is not None
    assert found.text(limit=2) == (
        "day=2013-01-08: 100 → 3 rows, day=2013-01-01: 100 → 60 rows, and 23 more"
    )
    assert found.text(shrunk=True) == "day=2013-01-08: 100 → 3 rows"
