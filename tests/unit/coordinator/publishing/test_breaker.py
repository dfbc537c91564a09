"""The circuit breaker: answers and errors pass, a call that hangs is left behind, and later calls
are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.servers import wait_until
from unstuck.coordinator.errors import WarehouseSilent
from unstuck.coordinator.publishing.breaker import MOST_HANGING, OPENS_AT, TRY_EVERY, CircuitBreaker

ANSWERS = 60.0  # seconds, for a call that is to answer


class HangingWarehouse:
    """A warehouse that hangs until it may answer, and counts who asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.breaker = CircuitBreaker(0.05, lambda: self.now)
        self.threads: list[threading.Thread] = []
        self.may_answer = threading.Event()

    def ask(self, limit: float | None = None, place: str = "/mnt/w") -> str:
        return self.breaker.call(place, "job a is not stored", self._answer, limit)

    def _answer(self) -> str:
        self.threads.append(threading.current_thread())
        self.may_answer.wait()
        return "id1"

    def hangs(self, place: str = "/mnt/w") -> str:
        with pytest.raises(WarehouseSilent) as refused:
            self.ask(place=place)
        return str(refused.value)

    def was_asked(self, times: int) -> None:
        """A thread that was started may begin after its call has been left behind."""
        wait_until(
            lambda: len(self.threads) >= times,
            60,
            f"{times} calls to begin, of which {len(self.threads)} have",
        )
        assert len(self.threads) == times


@pytest.fixture
def mount() -> Iterator[HangingWarehouse]:
    made = HangingWarehouse()
    yield made
    made.may_answer.set()
    for thread in made.threads:
        thread.join()


def test_an_answer_of_a_warehouse_is_returned_even_if_it_is_an_error(
    mount: HangingWarehouse,
) -> None:
    mount.may_answer.set()
    assert mount.ask(ANSWERS) == "id1"

    def broken() -> None:
        raise PermissionError(13, "Permission denied", "/mnt/w/_warehouse_id")

    with pytest.raises(PermissionError, match="_warehouse_id"):
        mount.breaker.call("/mnt/w", "job a is not stored", broken, ANSWERS)


def test_a_hanging_warehouse_is_reported_with_consequences_and_remedy(
    mount: HangingWarehouse,
) -> None:
    said = mount.hangs()
    assert said.startswith(
        "job a is not stored: the warehouse /mnt/w has not answered within 0.05s. "
    )
    assert "unstuck doctor" in said


def test_after_enough_hangs_calls_are_refused_and_one_per_minute_is_tried(
    mount: HangingWarehouse,
) -> None:
    for _ in range(OPENS_AT + 1):  # the last is the first to try after that
        assert "has not answered" in mount.hangs()
    for _ in range(5):
        assert f"does not answer: {OPENS_AT + 1} calls" in mount.hangs()
    mount.was_asked(OPENS_AT + 1)
    mount.now += TRY_EVERY
    assert "has not answered" in mount.hangs()
    assert "does not answer" in mount.hangs()
    assert (
        mount.breaker.call("/mnt/other", "job b is not stored", lambda: "id2", ANSWERS) == "id2"
    ), "it is another"


def test_each_hanging_warehouse_is_tried_once_a_minute_independently(
    mount: HangingWarehouse,
) -> None:
    def tried(place: str) -> bool:
        return "has not answered" in mount.hangs(place)

    places = ("/mnt/a", "/mnt/b")
    for place in places:
        assert [tried(place) for _ in range(OPENS_AT + 2)] == [True] * (OPENS_AT + 1) + [False]
    for _ in range(2):
        mount.now += TRY_EVERY
        assert [tried(place) for place in (*places, *places)] == [True, True, False, False]


def test_a_recovered_warehouse_is_used_normally_again(mount: HangingWarehouse) -> None:
    for _ in range(OPENS_AT + 2):
        mount.hangs()
    mount.may_answer.set()
    mount.was_asked(OPENS_AT + 1)
    for thread in mount.threads:
        thread.join()
    assert [mount.ask(ANSWERS) for _ in range(3)] == ["id1"] * 3


def test_a_hanging_warehouse_leaves_a_bounded_number_of_threads(mount: HangingWarehouse) -> None:
    mount.breaker = CircuitBreaker(0.001, lambda: mount.now)
    for _ in range(MOST_HANGING + 10):
        mount.hangs()
        mount.now += TRY_EVERY
    mount.was_asked(MOST_HANGING)
