"""The publisher: what it tells of a try that takes long, waits, cannot be told, or raises."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import redis

from tests.support.jobs.job_in_memory import Job, group
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background import Work
from unstuck.coordinator.publishing.background_tries import GOES_ON, Publisher
from unstuck.in_process.at_once import AtOnce

DONE = PublishResult(version=1)
WHY = Reason("USER_CANCELED", "no")


class Slow:
    """A warehouse that answers ten times, seven seconds apart."""

    def __init__(self) -> None:
        self.now = 1000.0

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        for _ in range(10):
            self.now += 7.0
            answered()
        return DONE

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        return self.publish(state, answered)


class Room:
    """Runs nothing by itself; has room, or has not."""

    exhausted = False

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.alive: list[int] = []

    def __call__(self, key: Hashable, place: str, work: Work, *, new_try: bool = False) -> bool:
        if not self.full:
            work(lambda: self.alive.append(1))
        return self.full


@pytest.fixture
def state() -> JobState:
    job = Job(group("a"))
    job.decide()
    job.run("a")
    return job.state


def publisher(tell: Callable[[str, PublishResult], bool], **more: Any) -> tuple[Publisher, Slow]:
    slow = Slow()
    more = {"background": AtOnce(), **more}
    return Publisher(slow, tell, sleep=lambda _: None, clock=lambda: slow.now, **more), slow


def test_a_long_try_reports_progress_twice_a_minute_and_then_its_result(
    state: JobState,
) -> None:
    told: list[PublishResult] = []
    room = Room(full=False)
    publish, _ = publisher(lambda _, result: told.append(result) or True, background=room)
    publish.soon(state, None, new_try=True)
    assert told == [GOES_ON, GOES_ON, DONE]
    assert len(room.alive) == 10, "and with every answer that it does not hang"


def test_a_try_that_checks_the_log_reports_nothing_before_its_result(state: JobState) -> None:
    told: list[PublishResult] = []
    publish, _ = publisher(lambda _, result: told.append(result) or True)
    publish.soon(state, WHY, new_try=True)
    assert told == [DONE]


@pytest.mark.parametrize(
    ("abort", "new_try", "said"), [(None, False, [GOES_ON]), (None, True, []), (WHY, False, [])]
)
def test_a_try_waiting_for_capacity_continues_after_a_check(
    state: JobState, abort: Reason | None, new_try: bool, said: list[PublishResult]
) -> None:
    """A new one was told of a moment ago."""
    told: list[PublishResult] = []
    publish, _ = publisher(
        lambda _, result: told.append(result) or True, background=Room(full=True)
    )
    publish.soon(state, abort, new_try)
    assert told == said


def test_unreportable_heartbeats_are_ignored_and_results_are_reported_until_received(
    state: JobState,
) -> None:
    told: list[PublishResult] = []

    def tell(job: str, result: PublishResult) -> bool:
        told.append(result)
        if result is GOES_ON:
            raise redis.ConnectionError("away")
        return len(told) > 5

    publish, _ = publisher(tell)
    publish.soon(state, None, new_try=True)
    assert told == [GOES_ON, GOES_ON, DONE, DONE, DONE, DONE]
