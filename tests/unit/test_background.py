"""Background: a few at a time in each place; what hangs leaves its room, and may be tried again beside itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from servers import wait_until

from coordinator.background import LONGEST, AtOnce, Background


class Place:
    """Works that hang until they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.release = threading.Event()

    def hanging(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.began.append(name)
            self.release.wait(30)
            self.ended.append(name)

        return work


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.release.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_no_more_than_the_room_of_a_place_and_the_rest_as_soon_as_one_ends(place: Place, clock: Clock) -> None:
    background = Background(2, clock=clock)
    for name in "abc":
        background(name, "here", place.hanging(name))
    wait_until(lambda: len(place.began) == 2, 5, "two to begin")
    background("d", "there", place.hanging("d"))
    wait_until(lambda: place.began[2:] == ["d"], 5, "what has a place of its own to begin")
    place.release.set()
    wait_until(lambda: sorted(place.ended) == list("abcd"), 5, "the third to have its turn, though nobody asks again")


def test_what_is_being_worked_on_or_waits_is_not_begun_twice(place: Place, clock: Clock) -> None:
    background = Background(1, clock=clock)
    for name in "abab":
        background(name, "here", place.hanging(name))
    place.release.set()
    wait_until(lambda: place.ended == ["a", "b"], 5, "each of them to end once")
    background("a", "here", place.hanging("a"))
    wait_until(lambda: place.ended == ["a", "b", "a"], 5, "it to be done again when it is asked for again")


def test_what_hangs_leaves_its_room_to_others(place: Place, clock: Clock) -> None:
    background = Background(1, term=100.0, clock=clock)
    background("a", "here", place.hanging("a"))
    background("b", "here", place.hanging("b"))
    wait_until(lambda: place.began == ["a"], 5, "the first to begin")
    clock.now += 99.0
    background("c", "here", place.hanging("c"))
    assert place.began == ["a"], "it is slow, and may be well"
    clock.now += 1.0
    background("c", "here", place.hanging("c"))
    wait_until(lambda: place.began == ["a", "b"], 5, "the second to have the room of what hangs")
    place.release.set()
    wait_until(lambda: sorted(place.ended) == ["a", "b", "c"], 5, "what waited to be done as well")


def test_what_hangs_is_tried_again_beside_itself_after_twice_as_long_each_time(place: Place, clock: Clock) -> None:
    background = Background(1, term=100.0, clock=clock)
    began: list[float] = []
    while len(began) < 8:
        tried = threading.active_count()
        background("a", "here", place.hanging("a"))
        if threading.active_count() > tried:
            began.append(clock.now)
        clock.now += 50.0
    waits = [later - earlier for earlier, later in pairwise(began)]
    assert waits == [100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, LONGEST]


def test_so_much_that_hangs_that_another_process_had_better_be_started(place: Place, clock: Clock) -> None:
    background = Background(1, term=100.0, most=3, clock=clock)
    for name in "abc":
        assert not background.exhausted
        background(name, "here", place.hanging(name))
        clock.now += 100.0
    wait_until(lambda: place.began == ["a", "b", "c"], 5, "all to begin, one after the other")
    assert background.exhausted
    place.release.set()
    wait_until(lambda: not background.exhausted, 5, "those that come back not to count")


def test_at_once_does_not_begin_what_it_is_doing() -> None:
    at_once, began = AtOnce(), []

    def work() -> None:
        began.append(1)
        at_once("a", "here", work)

    at_once("a", "here", work)
    at_once("a", "here", lambda: began.append(2))
    assert began == [1, 2]
