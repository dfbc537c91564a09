"""Patience with a warehouse: answers and errors pass, what hangs is left behind, and nobody queues up behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.servers import wait_until
from unstuck.coordinator.errors import WarehouseSilent
from unstuck.coordinator.publishing.breaker import ENOUGH, EVERY, MOST, Patience


class Mount:
    """A warehouse that hangs until it thaws, and counts who asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.patience = Patience(0.05, lambda: self.now)
        self.asked = 0
        self.thawed = threading.Event()

    def ask(self, place: str = "/mnt/w") -> str:
        return self.patience.ask(place, "job a is not stored", self._answer)

    def _answer(self) -> str:
        self.asked += 1
        self.thawed.wait(60)
        return "id1"

    def hangs(self) -> str:
        with pytest.raises(WarehouseSilent) as refused:
            self.ask()
        return str(refused.value)


@pytest.fixture
def mount() -> Iterator[Mount]:
    made = Mount()
    yield made
    made.thawed.set()


def test_what_a_warehouse_answers_is_answered_be_it_an_error(mount: Mount) -> None:
    mount.thawed.set()
    assert mount.ask() == "id1"

    def broken() -> None:
        raise PermissionError(13, "Permission denied", "/mnt/w/_warehouse_id")

    with pytest.raises(PermissionError, match="_warehouse_id"):
        mount.patience.ask("/mnt/w", "job a is not stored", broken)


def test_a_warehouse_that_hangs_is_said_to_with_what_comes_of_it_and_what_to_do(mount: Mount) -> None:
    said = mount.hangs()
    assert said.startswith("job a is not stored: the warehouse /mnt/w has not answered within 0.05s. ")
    assert "unstuck doctor" in said


def test_where_enough_hang_the_others_are_refused_at_once_and_one_a_minute_tries(mount: Mount) -> None:
    for _ in range(ENOUGH + 1):  # the last is the first to try after that
        assert "has not answered" in mount.hangs()
    for _ in range(5):
        assert f"does not answer: {ENOUGH + 1} questions" in mount.hangs()
    assert mount.asked == ENOUGH + 1
    mount.now += EVERY
    assert "has not answered" in mount.hangs()
    assert "does not answer" in mount.hangs()
    assert mount.patience.ask("/mnt/other", "job b is not stored", lambda: "id2") == "id2", "another is asked as ever"


def test_a_warehouse_that_answers_again_is_asked_as_ever(mount: Mount) -> None:
    for _ in range(ENOUGH + 2):
        mount.hangs()
    mount.thawed.set()
    wait_until(lambda: _questions() == 0, 10, "what hung to come back")
    assert [mount.ask() for _ in range(3)] == ["id1"] * 3


def test_however_long_it_hangs_so_many_threads_are_left_behind_and_no_more(mount: Mount) -> None:
    mount.patience = Patience(0.001, lambda: mount.now)
    for _ in range(MOST + 10):
        mount.hangs()
        mount.now += EVERY
    assert mount.asked == MOST == _questions()


def _questions() -> int:
    return sum(thread.name == "warehouse-question" for thread in threading.enumerate())
