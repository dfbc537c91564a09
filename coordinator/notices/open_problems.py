"""Keeps notified problems in the warehouse, because a rollback of Redis forgets them.

A file is written before the first notice of a problem is sent, and removed after the notice of its
end. If Redis has lost a problem that has a file, this module sends the notice of its end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.notices.rules.forgotten import Fate, Subject, end_of, fate_of
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse

log = logging.getLogger(__name__)
FOLDER = "_notices"
ANSWER_WITHIN = 2.0  # seconds for one file: a notice waits no longer for the warehouse
LOOK_INTERVAL_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """A problem that one target was notified of; ``notice``: the newest notice of it."""

    target: str
    notice: Notice


class OpenProblems:
    """The files of one fleet.

    Errors of the warehouse are logged, and stop no notice.
    """

    def __init__(self, settings: Settings, breaker: CircuitBreaker | None = None) -> None:
        self._uri = settings.warehouse
        self._breaker = breaker or CircuitBreaker(ANSWER_WITHIN)
        # Fleets with other jobs may share the warehouse.
        fleet = f"{without_password(settings.redis_url)} {settings.prefix}"
        self._folder = f"{FOLDER}/{_digest(fleet)}"

    def note(self, target: str, notice: Notice) -> None:
        """Store a problem before ``target`` is notified, if the target subscribed to its end."""
        if target in notice.ends:
            text = json.dumps({"target": target, "notice": json.loads(notice.to_json())})
            path = self._path(target, notice.problem)
            self._call(lambda place: place.storage.write_durable(path, text.encode()), None)

    def forget(self, target: str, problem: str) -> None:
        """Remove a problem whose end was sent."""
        path = self._path(target, problem)
        self._call(lambda place: place.storage.remove_file(path), None)

    def all(self) -> list[OpenProblem]:
        """Return all open problems; none if the warehouse cannot be read."""
        return self._call(lambda place: list(self._read(place)), [])

    def _read(self, place: Warehouse) -> Iterator[OpenProblem]:
        for name in place.storage.names(self._folder):
            if not name.endswith(".json"):
                continue  # being written
            try:
                fields = json.loads(place.storage.read(f"{self._folder}/{name}"))
                yield OpenProblem(fields["target"], Notice.from_json(json.dumps(fields["notice"])))
            except FileNotFoundError:
                continue  # another coordinator has sent its end
            except (ValueError, KeyError, TypeError) as error:
                log.warning(
                    "%s/%s is not a notice that this release can read: %s",
                    self._folder,
                    name,
                    error,
                )

    def _path(self, target: str, problem: str) -> str:
        return f"{self._folder}/{_digest(f'{target} {problem}')}.json"

    def _call(self, function: Callable[[Warehouse], T], otherwise: T) -> T:
        """Call the warehouse if it exists. Never create one: its mount may be absent."""
        place = Warehouse(self._uri)

        def call() -> T:
            return otherwise if place.identity() is None else function(place)

        try:
            return self._breaker.call(self._uri, "open problems are not noted", call)
        except Exception as error:  # noqa: BLE001 - a warehouse's client may raise anything
            log.warning(
                "a rollback of Redis now may leave a problem open at its receiver: %s", error
            )
            return otherwise


class ForgottenProblems:
    """Sends notices of the end of problems that Redis has lost. A repeat has the same ids."""

    def __init__(
        self,
        problems: OpenProblems,
        outbox: Outbox,
        jobs: Store,
        schedules: ScheduleStore,
        expected: ExpectedJobsStore,
        retention: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the object.

        Args:
            retention: seconds after which a job leaves the store, whether or not its problem has
                ended.
            clock: Unix seconds.
        """
        self._problems, self._outbox, self._retention, self._clock = (
            problems,
            outbox,
            retention,
            clock,
        )
        self._jobs, self._schedules, self._expected = jobs, schedules, expected
        self._background = Background(1, "forgotten-problems")
        self._next = 0.0

    def begin(self) -> None:
        """Check in the background, unless the last check was recent."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_INTERVAL_S
            self._background("look", "", lambda alive: self.look())

    def look(self) -> None:
        """Compare the files with Redis.

        An error concerns one problem, which the next check retries.
        """
        for problem in self._problems.all():
            try:
                self._judge(problem)
            except Exception:
                log.exception(
                    "whether %s has ended is not known; the next look tries again",
                    problem.notice.problem,
                )

    def _judge(self, problem: OpenProblem) -> None:
        now, subject = self._clock(), self._subject(problem.notice)
        fate = fate_of(problem.target, problem.notice, subject, now, self._retention)
        # The problem is removed when the notice is sent, since Redis may lose it once more.
        if fate is Fate.FORGOTTEN:
            self._outbox.add(end_of(problem.target, problem.notice, subject, now))
        elif fate is Fate.ENDED:
            self._problems.forget(problem.target, problem.notice.problem)

    def _subject(self, notice: Notice) -> Subject | None:
        """Return what Redis knows of the subject of a problem.

        Raises: redis.RedisError, Damaged, NewerJob.
        """
        kind, _, name = notice.problem.partition(":")
        if kind == "schedule":
            record = self._schedules.load(name)
            return None if record is None else Subject.of_schedule(record)
        if kind == "expected":
            return Subject.of_expected(self._expected.all()[1].get(name, "{}"), notice.since)
        jobs = (self._jobs.job(job) for job in dict.fromkeys((notice.job, name)))
        return Subject.of_jobs([job for job in jobs if job is not None])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
