"""When a process counts as stopped for good: never because whoever looks did not run."""

from __future__ import annotations

import pytest

from unstuck.tasks.process.standstill import Standstill
from unstuck.tasks.process.tree import Seen


def stood(looks: list[tuple[float, Seen]]) -> float:
    found = Standstill()
    for at, seen in looks:
        found = found.after(seen, at, within=1.0)
    return found.seconds


def stopped(begin: int, end: int) -> list[tuple[float, Seen]]:
    return [(float(at), Seen.STOPPED) for at in range(begin, end + 1)]


def test_it_counts_from_the_first_look_that_saw_it_stopped() -> None:
    assert stood([(0.0, Seen.ALIVE), *stopped(1, 6)]) == 5.0


@pytest.mark.parametrize("seen", [Seen.ALIVE, Seen.GONE])
def test_one_look_that_sees_it_otherwise_begins_the_count_anew(seen: Seen) -> None:
    assert stood([*stopped(0, 9), (9.5, seen), *stopped(10, 12)]) == 2.0


def test_a_night_in_which_all_were_frozen_counts_as_one_look() -> None:
    assert stood([(0.0, Seen.STOPPED), (36000.0, Seen.STOPPED), (36000.5, Seen.STOPPED)]) == 1.5
