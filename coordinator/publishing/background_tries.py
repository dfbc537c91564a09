"""Publishes jobs in the background, and records on each job how its try ended.

Twice a minute it also records that a try is active, so that a long try does not count as hanging.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial

import redis

from unstuck.coordinator.decide.timers.backoff import BUSY_WAIT, Uniform, random_wait
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.publish_outputs import abort, publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.errors import UnstuckError, WarehouseMismatch, WarehouseUnsafe
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.log_lines import about, also_about

log = logging.getLogger(__name__)
MAX_BUSY = 100
PROGRESS_EVERY = 30.0  # seconds between two records of progress
GOES_ON = PublishResult(goes_on=True)


class Warehouses:
    """Publishes each job in its own warehouse.

    Both calls may be repeated at any time, because the warehouse log has at most one entry of the
    job. ``answered`` is called after each answer of the warehouse.
    """

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        """Publish a job whose groups are all done. Raises: as `publish_outputs.publish`."""
        return publish(PublishRequest.of(state, time.time()), answered)

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        """Write an ABORT entry for the job into the log, unless the log has its package."""
        return abort(PublishRequest.of(state, time.time()), why, answered)


Decide = Callable[[str, PublishResult], bool]
"""Decides on the result of a try, for a job. False: the job was busy, and the result is not
recorded yet.
"""


class Publisher:
    """The publisher of one coordinator. Safe to use from several threads."""

    def __init__(
        self,
        warehouses: Warehouses,
        decide: Decide,
        background: Background,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Uniform = random.uniform,
    ) -> None:
        """Create the publisher.

        Args:
            decide: decides on a result; raises redis.RedisError if the store cannot be reached.
            background: runs each try.
            clock: monotonic seconds.
        """
        self._warehouses = warehouses
        self._decide = decide
        self._background = background
        self._sleep = sleep
        self._clock = clock
        self._uniform = uniform

    @property
    def exhausted(self) -> bool:
        """Whether so many tries hang that only another process can help."""
        return self._background.exhausted

    def soon(self, state: JobState, abort: Reason | None, new_try: bool) -> None:
        """Publish or abort in the background, so that a hanging warehouse delays no other job.

        At most one try of each kind runs per job, unless the job's record requests another
        (``new_try``).
        """
        job = state.job.id
        key = (job, "publish" if abort is None else "abort")
        waits = self._background(
            key, state.job.warehouse, partial(self._try, state, abort), new_try=new_try
        )
        if waits and abort is None and not new_try:
            self._record_progress(job)

    def _try(self, state: JobState, abort: Reason | None, alive: Callable[[], None]) -> None:
        with about(job=state.job.id):
            if state.job.schedule:
                also_about(schedule=state.job.schedule)
            self._try_it(state, abort, alive)

    def _try_it(self, state: JobState, abort: Reason | None, alive: Callable[[], None]) -> None:
        job = state.job.id
        recorded_at = self._clock()

        def answered() -> None:
            nonlocal recorded_at
            alive()
            if abort is None and self._clock() - recorded_at >= PROGRESS_EVERY:
                recorded_at = self._clock()
                self._record_progress(job)

        result = self._result(state, abort, answered)
        reach(Point.AFTER_PUBLISH, job)
        try:
            # Only this process knows the result; lost, it would be found out only by publishing
            # once more.
            for tries in range(1, MAX_BUSY):
                if self._decide(job, result):
                    break
                self._sleep(random_wait(BUSY_WAIT, tries, self._uniform))
        except redis.RedisError as error:
            log.warning(
                "job %s was published, which could not be recorded; it will be found out: %s",
                job,
                error,
            )

    def _record_progress(self, job: str) -> None:
        """Record that a try is active. A failed record does no harm, since the next one follows."""
        try:
            self._decide(job, GOES_ON)
        except redis.RedisError as error:
            log.warning("job %s is being published, which could not be recorded: %s", job, error)

    def _result(
        self, state: JobState, abort: Reason | None, answered: Callable[[], None]
    ) -> PublishResult:
        try:
            if abort is None:
                return self._warehouses.publish(state, answered)
            return self._warehouses.abort(state, abort, answered)
        except Exception as error:
            if abort is None and isinstance(error, WarehouseMismatch | WarehouseUnsafe):
                return PublishResult(trouble=Reason(error.code, str(error)))
            # A warehouse's client may raise anything: this job is tried again later, and must not
            # stop the others.
            if not isinstance(error, OSError | UnstuckError):
                log.exception("job %s could not be published", state.job.id)
            what = "the package could not be published yet"
            if abort is not None:
                what = "the warehouse has not answered yet whether the package is published"
            return PublishResult(
                trouble=Reason("PUBLISH_TROUBLE", f"{what}: {type(error).__name__}: {error}"[:500])
            )
