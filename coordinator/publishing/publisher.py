"""The publisher: publishes beside the threads that decide, and tells the job's record what became of it.

It tells how a try ended, and twice a minute that it goes on: that the warehouse has answered again since, or that it
waits behind other jobs. So a try that honestly takes an hour is never taken for one that hangs, by no coordinator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import redis

from unstuck.coordinator.decide.deadlines import BUSY_WAIT, random_wait
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background import AtOnce, Runs
from unstuck.tasks.failpoints import Point, reach

log = logging.getLogger(__name__)
MAX_BUSY = 100
SIGN_EVERY = 30.0  # seconds between two signs of life of one try
GOES_ON = PublishResult(goes_on=True)


class Warehouses(Protocol):
    """Where packages go. Both may take long, call ``answered`` after each answer they get, and must not raise."""

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        """Publish a job whose groups are all done."""

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        """Make sure that a job is never published; if it is already, say so."""


Tell = Callable[[str, PublishResult], bool]
"""Let the record of a job know what came of a try. False: the job was busy, and does not know it yet."""


class Publisher:
    """Of one coordinator. Safe to use from several threads."""

    def __init__(
        self,
        warehouses: Warehouses,
        tell: Tell,
        background: Runs | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tell: raises redis.RedisError if the store could not be asked.
            background: runs it off the caller's thread; by default, on it.
            clock: monotonic seconds.
        """
        self._warehouses = warehouses
        self._tell = tell
        self._background = background or AtOnce()
        self._sleep = sleep
        self._clock = clock

    @property
    def exhausted(self) -> bool:
        """So many tries hang that only another process would help."""
        return self._background.exhausted

    def soon(self, state: JobState, abort: Reason | None, anew: bool) -> None:
        """Publish, or make sure it never happens, in the background; unless ``anew``, one of each per job at a time.

        A warehouse that hangs must hold up nobody else. What the record calls a new try is begun, whatever hangs here.
        """
        job = state.job.id
        key = (job, "publish" if abort is None else "abort")
        waits = self._background(key, state.job.warehouse, partial(self._try, state, abort), anew=anew)
        if waits and abort is None and not anew:
            self._say_that_it_goes_on(job)

    def _try(self, state: JobState, abort: Reason | None, alive: Callable[[], None]) -> None:
        job = state.job.id
        said = self._clock()

        def answered() -> None:
            nonlocal said
            alive()
            if abort is None and self._clock() - said >= SIGN_EVERY:
                said = self._clock()
                self._say_that_it_goes_on(job)

        result = self._result(state, abort, answered)
        reach(Point.AFTER_PUBLISH, job)
        try:
            # What came of it is known to us alone; dropped, it would be found out only by publishing once more.
            for tries in range(1, MAX_BUSY):
                if self._tell(job, result):
                    break
                self._sleep(random_wait(BUSY_WAIT, tries))
        except redis.RedisError as error:
            log.warning("job %s was published, which could not be recorded; it will be found out: %s", job, error)

    def _say_that_it_goes_on(self, job: str) -> None:
        """One that is not heard is no harm: the next follows, and a try that nobody hears of is only tried again."""
        try:
            self._tell(job, GOES_ON)
        except redis.RedisError as error:
            log.warning("job %s is being published, which could not be recorded: %s", job, error)

    def _result(self, state: JobState, abort: Reason | None, answered: Callable[[], None]) -> PublishResult:
        try:
            if abort is None:
                return self._warehouses.publish(state, answered)
            return self._warehouses.abort(state, abort, answered)
        except Exception as error:
            # Whatever a warehouse's client may raise: this job is tried again later, and must not stop the others.
            log.exception("job %s could not be published", state.job.id)
            text = f"the package could not be published yet: {type(error).__name__}: {error}"
            return PublishResult(trouble=Reason("PUBLISH_TROUBLE", text[:500]))
