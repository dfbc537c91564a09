"""Background: a few at a time in each place; what hangs leaves its room, and may be tried again
beside itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.programs.thread_limit import no_new_threads
from tests.support.servers import wait_until
from unstuck.coordinator.publishing.background import Background, Work


class HangingWork:
    """Works that hang until they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.further: dict[str, Callable[[], None]] = {}
        self.release = threading.Event()

    def hanging(self, name: str) -> Work:
        def work(further: Callable[[], None]) -> None:
            self.further[name] = further
            self.began.append(name)
            self.release.wait()
            self.ended.append(name)

        return work


class BackgroundClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place() -> Iterator[HangingWork]:
    made = HangingWork()
    yield made
    made.release.set()


@pytest.fixture
def clock() -> BackgroundClock:
    return BackgroundClock()


def test_the_limit_per_place_holds_and_the_rest_start_when_one_ends(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(2, clock=clock)
    for name in "abc":
        background(name, "here", place.hanging(name))
    wait_until(lambda: len(place.began) == 2, 5, "two to begin")
    background("d", "there", place.hanging("d"))
    wait_until(lambda: place.began[2:] == ["d"], 5, "what has a place of its own to begin")
    place.release.set()
    wait_until(
        lambda: sorted(place.ended) == list("abcd"),
        5,
        "the third to have its turn, though nobody asks again",
    )


def test_running_or_waiting_work_is_not_started_twice(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, clock=clock)
    for name in "abab":
        background(name, "here", place.hanging(name))
    place.release.set()
    wait_until(lambda: place.ended == ["a", "b"], 5, "each of them to end once")
    background("a", "here", place.hanging("a"))
    wait_until(
        lambda: place.ended == ["a", "b", "a"], 5, "it to be done again when it is asked for again"
    )


def test_hanging_work_leaves_its_capacity_to_others(
    place: HangingWork, clock: BackgroundClock
) -> None:
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


def test_hanging_work_is_retried_in_parallel_when_requested_again(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, term=100.0, beside=9, clock=clock)
    for began in range(1, 6):
        background("a", "here", place.hanging("a"))
        wait_until(lambda began=began: len(place.began) == began, 5, "one try more to begin")
        clock.now += 99.0
        background("a", "here", place.hanging("a"))
        assert len(place.began) == began, "it is slow, and may be well"
        clock.now += 1.0


def test_work_that_makes_progress_does_not_count_as_hanging(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, term=100.0, most=1, clock=clock)
    assert not background("a", "here", place.hanging("a"))
    wait_until(lambda: place.began == ["a"], 5, "it to begin")
    for _ in range(5):
        clock.now += 99.0
        place.further["a"]()
        assert background("b", "here", place.hanging("b")), "the other waits, and is well"
    assert (place.began, background.exhausted) == (["a"], False)
    clock.now += 100.0
    assert background.exhausted
    place.further["a"]()
    assert not background.exhausted, "it was slow"


def test_the_number_of_parallel_hanging_tries_is_limited(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, term=100.0, beside=3, clock=clock)
    for _ in range(6):
        background("a", "here", place.hanging("a"))
        clock.now += 100.0
    background("b", "here", place.hanging("b"))
    wait_until(
        lambda: place.began == ["a", "a", "a", "b"], 5, "the others to have their turn all the same"
    )
    place.release.set()
    wait_until(lambda: len(place.ended) == 4, 5, "all to come back")
    background("a", "here", place.hanging("a"))
    wait_until(lambda: place.ended[4:] == ["a"], 5, "it to be tried again")


def test_a_new_try_starts_only_when_requested(place: HangingWork, clock: BackgroundClock) -> None:
    """Whoever asks for it knows better, and has told people when it is begun."""
    background = Background(2, term=100.0, clock=clock)
    background("a", "here", place.hanging("a"))
    background("a", "here", place.hanging("a"), new_try=True)
    wait_until(lambda: place.began == ["a", "a"], 5, "both to be at work")
    clock.now += 100.0
    background("a", "here", place.hanging("a"))
    assert place.began == ["a", "a"]
    background("a", "here", place.hanging("a"), new_try=True)
    wait_until(lambda: place.began == ["a"] * 3, 5, "one more to be at work")


def test_work_without_a_thread_waits_and_starts_when_requested_again(
    place: HangingWork, clock: BackgroundClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a limit of processes or memory."""
    background = Background(1, term=100.0, most=1, clock=clock)
    with caplog.at_level(logging.WARNING), no_new_threads():
        background("a", "here", place.hanging("a"))
    assert "publisher a in here waits: no thread could be started for it" in caplog.text
    clock.now += 100.0
    assert not background.exhausted, "what never began hangs nowhere"
    background("b", "here", place.hanging("b"))
    place.release.set()
    wait_until(lambda: place.ended == ["a", "b"], 5, "what waited to be done, in its turn")


def test_work_that_gets_no_thread_after_another_ends_also_waits(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, clock=clock)
    background("a", "here", place.hanging("a"))
    background("b", "here", place.hanging("b"))
    wait_until(lambda: place.began == ["a"], 5, "the first to begin")
    with no_new_threads():
        place.release.set()
        wait_until(
            lambda: "publisher" not in [thread.name for thread in threading.enumerate()],
            5,
            "it to end",
        )
    assert place.ended == ["a"]
    background("b", "here", place.hanging("b"))
    wait_until(lambda: place.ended == ["a", "b"], 5, "the second to have its turn")


def test_too_much_hanging_work_requests_a_new_process(
    place: HangingWork, clock: BackgroundClock
) -> None:
    background = Background(1, term=100.0, most=3, clock=clock)
    for name in "abc":
        assert not background.exhausted
        background(name, "here", place.hanging(name))
        clock.now += 100.0
    wait_until(lambda: place.began == ["a", "b", "c"], 5, "all to begin, one after the other")
    assert background.exhausted
    place.release.set()
    wait_until(lambda: not background.exhausted, 5, "those that come back not to count")
