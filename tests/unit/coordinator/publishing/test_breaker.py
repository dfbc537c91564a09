"""The circuit breaker: answers and errors pass, a call that hangs is left behind, and later calls are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.servers import wait_until
from unstuck.coordinator.errors import WarehouseSilent
from unstuck.coordinator.publishing.breaker import MOST_HANGING, OPENS_AT, TRY_EVERY, CircuitBreaker


class Mount:
    """A warehouse that hangs until it may answer, and counts who asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.breaker = CircuitBreaker(0.05, lambda: self.now)
        self.asked = 0
        self.may_answer = threading.Event()

    def ask(self, place: str = "/mnt/w") -> str:
        return self.breaker.call(place, "job a is not stored", self._answer)

    def _answer(self) -> str:
        self.asked += 1
        self.may_answer.wait()
        return "id1"

    def hangs(self) -> str:
        with pytest.raises(WarehouseSilent) as refused:
            self.ask()
        return str(refused.value)


@pytest.fixture
def mount() -> Iterator[Mount]:
    made = Mount()
    yield made
    made.may_answer.set()


def test_what_a_warehouse_answers_is_answered_be_it_an_error(mount: Mount) -> None:
    mount.may_answer.set()
    assert mount.ask() == "id1"

    def broken() -> None:
        raise PermissionError(13, "Permission denied", "/mnt/w/_warehouse_id")

    with pytest.raises(PermissionError, match="_warehouse_id"):
        mount.breaker.call("/mnt/w", "job a is not stored", broken)


def test_a_warehouse_that_hangs_is_said_to_with_what_comes_of_it_and_what_to_do(mount: Mount) -> None:
    said = mount.hangs()
    assert said.startswith("job a is not stored: the warehouse /mnt/w has not answered within 0.05s. ")
    assert "unstuck doctor" in said


def test_where_enough_hang_the_others_are_refused_at_once_and_one_a_minute_tries(mount: Mount) -> None:
    for _ in range(OPENS_AT + 1):  # the last is the first to try after that
        assert "has not answered" in mount.hangs()
    for _ in range(5):
        assert f"does not answer: {OPENS_AT + 1} calls" in mount.hangs()
    assert mount.asked == OPENS_AT + 1
    mount.now += TRY_EVERY
    assert "has not answered" in mount.hangs()
    assert "does not answer" in mount.hangs()
    assert mount.breaker.call("/mnt/other", "job b is not stored", lambda: "id2") == "id2", "another is asked as ever"


def test_a_warehouse_that_answers_again_is_asked_as_ever(mount: Mount) -> None:
    for _ in range(OPENS_AT + 2):
        mount.hangs()
    mount.may_answer.set()
    wait_until(lambda: _calls() == 0, 10, "what hung to come back")
    assert [mount.ask() for _ in range(3)] == ["id1"] * 3


def test_however_long_it_hangs_so_many_threads_are_left_behind_and_no_more(mount: Mount) -> None:
    mount.breaker = CircuitBreaker(0.001, lambda: mount.now)
    for _ in range(MOST_HANGING + 10):
        mount.hangs()
        mount.now += TRY_EVERY
    assert mount.asked == MOST_HANGING == _calls()


def _calls() -> int:
    return sum(thread.name == "warehouse-call" for thread in threading.enumerate())
