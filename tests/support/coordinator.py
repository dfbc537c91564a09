"""A coordinator for tests: the real parts on a real store, with the broker in the test's own hand.

Wake-ups are counted in ``wake_ups`` and do not go to Celery, and a test takes the offers off the
ready sets itself. The worker's side is played with the real lease scripts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.support.clock import Clock
from tests.support.servers import wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.staging_gc import StagingCollector
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.expected_jobs import ExpectedJobs
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.reconcile.reconciler import Reconciler, SendWakeUps
from unstuck.coordinator.reconcile.schedule_notices import ScheduleNotices
from unstuck.coordinator.reconcile.schedule_sweep import ScheduleSweep
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.indexes import Indexes
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.reports import ReportStream
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.in_process.at_once import AtOnce
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.transport.lease import Claim, FinishAnswer, Lease
from unstuck.tasks.transport.redis_client import connect

NOOP = [{"python": "examples.noop:noop"}]
SUCCEEDED = Outcome(OutcomeKind.SUCCEEDED)


class WatchedWarehouses(Warehouses):
    """Publishes for real, after ``before_publish``."""

    def __init__(self) -> None:
        self.before_publish: Callable[[], None] = lambda: None

    def publish(self, state: Any, answered: Callable[[], None]) -> Any:
        self.before_publish()
        return super().publish(state, answered)


class UnlistedHeartbeat(Heartbeat):
    """The heartbeat of a coordinator that the fleet does not list."""

    def beat(self, read_ago: float | None, swept_ago: float | None) -> None:
        pass


class Coordinator:
    """One coordinator process, without the process.

    Attributes:
        wake_ups: wake-ups per queue that `send_wake_ups` counts instead of sending them to Celery.
        consumer: reads reports as a process does; `read` applies them at once.
    """

    def __init__(
        self,
        url: str,
        warehouse: Path,
        client: redis.Redis | None = None,
        background: Any = None,
        collecting: Any = None,
        rules: tuple[FleetRule, ...] = (),
        clock: Callable[[], float] | None = None,
        **settings: Any,
    ) -> None:
        """
        Args:
            background: publishes and submits.
            collecting: removes staging; `background` if None.
            clock: monotonic seconds, of the consumer and of the looks at expected jobs;
                `self.clock` if None.
        """
        self.settings = Settings(redis_url=url, warehouse=str(warehouse), **settings)
        self.redis = client or connect(url)
        self.keys = Keys(self.settings.prefix)
        self.store = Store(self.settings, self.redis)
        self.queries = Queries(self.redis, self.keys)
        self.clock = Clock()
        clock = clock or self.clock
        self.wake_ups: Counter[str] = Counter()
        self.send_wake_ups: SendWakeUps = self.wake_ups.update
        self.warehouses = WatchedWarehouses()
        background = background or AtOnce()

        def send(wake_ups: Mapping[str, int]) -> None:
            self.send_wake_ups(wake_ups)

        self.reconciler = Reconciler(
            self.store, send, self.warehouses, self.settings, mint, background, rules=rules
        )
        self.staging_index = StagingIndex(self.redis, self.keys)
        self.collector = StagingCollector(
            self.staging_index, self.store, collecting or background, self.settings
        )
        indexes = Indexes(self.redis, self.keys, self.store)
        submitter = Submitter(
            self.settings, self.redis, Submissions(self.redis, self.keys), CircuitBreaker()
        )
        self.schedule_store = ScheduleStore(self.redis, self.keys)
        notices, term = ScheduleNotices(rules, self.settings.time_zone), self.settings.lock_term
        self.schedules = ScheduleSweep(
            self.schedule_store, self.store, submitter, background, mint, term, notices=notices
        )
        self.expected_store = ExpectedJobsStore(self.redis, self.keys)
        self.expected = ExpectedJobs(self.expected_store, rules, self.settings.time_zone, clock)
        parts: dict[str, Any] = {
            "collector": self.collector,
            "indexes": indexes,
            "schedules": self.schedules,
        }
        parts["expected"] = self.expected
        self.sweep = Sweep(self.store, self.reconciler, self.settings, **parts)
        name = f"host:1:{mint()}"
        self.stream = ReportStream(self.redis, self.keys, name)
        self.stream.open()
        self.heartbeat = Heartbeat(self.redis, self.keys, name)
        self.consumer = Consumer(
            self.stream, self.reconciler, self.sweep, self.settings, self.heartbeat, clock
        )
        unlisted = UnlistedHeartbeat(self.redis, self.keys, name)
        self._reader = Consumer(
            self.stream, self.reconciler, self.sweep, self.settings, unlisted, wait=0.0
        )
        self.client = Client(self.settings, redis_client=self.redis)
        self.lease = self.lease_of("runner")

    def lease_of(self, claimant: str) -> Lease:
        """The lease scripts as the runner ``claimant`` calls them."""
        return Lease(self.redis, self.keys, self.settings.lease_ttl, claimant)

    @property
    def sent(self) -> list[Offer]:
        """All offers that stand ready, in the order in which they are taken."""
        found: list[tuple[float, str]] = []
        for lane in self.store.lanes():
            found += [
                (turn, offer)
                for offer, turn in self.redis.zrange(self.keys.ready(lane), 0, -1, withscores=True)
            ]
        return [Offer.parse(offer) for _, offer in sorted(found)]

    def note_runner(self, name: str, heard: float = 0.0, **fields: Any) -> None:
        """As if the watchdog of a runner of queue ``light`` had described it ``heard`` seconds
        ago.
        """
        known: dict[str, Any] = {
            "host": "host-9",
            "pid": 77,
            "worker_pid": 70,
            "queues": ("light",),
            **fields,
        }
        ProcessRegistry(self.redis, self.keys).note(
            lambda now: RunnerInfo(id=name, heard_at=now - heard, **known)
        )

    def submit(self, *groups: dict[str, Any], name: str = "job", **spec: Any) -> str:
        """Submit a job of these groups; a group without steps that is no join gets a no-op."""
        return self.client.submit({"name": name, "groups": list(groups), **spec}).id

    def show(self, job: str) -> JobInfo:
        return self.client.show(job)

    def offer_of(self, job: str, name: str) -> Offer:
        """The newest offer of a group, wherever it is."""
        return self.state(job).record(name).offer(job, name)

    def state(self, job: str) -> JobState:
        """The records of a job and of its groups."""
        found = self.queries.state(job)
        assert found is not None, f"no job {job}"
        return found[0]

    def record(self, job: str) -> JobRecord:
        """The record of a job alone."""
        found = self.store.job(job)
        assert found is not None, f"no job {job}"
        return found

    def status(self, job: str) -> Status:
        return self.show(job).status

    def status_of_record(self, job: str) -> Status:
        """The status as stored, of a job whose groups may not be readable."""
        return Status(str(self.redis.hget(self.keys.of(job).job, "status")))

    def unwrite(self, job: str, name: str) -> None:
        """As if the field ``name`` of the record had never been written."""
        key = self.keys.of(job).job
        self.redis.hdel(key, name)
        number, *names = str(self.redis.hget(key, "fields")).split()
        kept = [one for one in names if one != name]
        assert len(kept) == int(number) - 1
        self.redis.hset(key, "fields", f"{len(kept)} {' '.join(kept)} ")

    def events(self, job: str, group: str | None = None) -> list[str]:
        """Kinds of events, in order."""
        return [
            event["kind"]
            for _, event in self.client.events(job)
            if group is None or event.get("group") == group
        ]

    def read(self) -> None:
        """Apply every report in the stream, and whatever follows from it, without collecting."""
        while entries := self.stream.read(500, 0.0):
            self._reader.apply(entries)
        while self._reader.again(time.monotonic()):
            pass

    def offers(self, job: str | None = None) -> list[Offer]:
        """Take the offers that stand off the ready sets; a test may claim them, or lose them."""
        mine = [offer for offer in self.sent if job in (None, offer.job)]
        for offer in mine:
            self._take_off(offer)
        return mine

    def _take_off(self, offer: Offer) -> None:
        for lane in self.store.lanes():
            self.redis.zrem(self.keys.ready(lane), str(offer))

    def claim(self, offer: Offer, claimant: str = "runner1") -> Taken:
        """Take this very offer, which is put on a queue of its own for it."""
        self._take_off(offer)
        # A caller of its own for each offer: a caller that takes again under the same claimant gets
        # the same answer.
        return take(
            self.lease_of(f"{claimant}-{offer.group}-{offer.nonce}"),
            self.redis,
            self.keys,
            offer,
            claimant,
        )

    def finish(self, token: Token, outcome: Outcome = SUCCEEDED, event: str = "") -> FinishAnswer:
        return self.lease_of(token.claimant).finish(token, outcome, event or mint())

    def work(
        self, offer: Offer, outcome: Outcome = SUCCEEDED, claimant: str = "runner1"
    ) -> FinishAnswer:
        """Claim and finish one attempt."""
        assert self.claim(offer, claimant).answer == "CLAIMED"
        return self.finish(offer.held_by(claimant), outcome)

    def drive(self, job: str, rounds: int = 1000) -> Status:
        """Work off every offer of the job until it has ended."""
        for _ in range(rounds):
            self.read()
            for offer in self.offers(job):
                self.work(offer)
            if self.status(job).terminal:
                return self.status(job)
        raise AssertionError(f"job {job} has not ended after {rounds} rounds: {self.show(job)}")

    def due_in(self, job: str) -> float:
        view = self.show(job)
        assert view.due_at is not None
        return view.due_at - view.at

    def wait_for(self, job: str, *status: Status, timeout: float = 10) -> None:
        wait_until(lambda: self.status(job) in status, timeout, f"job {job} to be {status}")


@dataclass(frozen=True)
class Taken:
    """What became of the try to take one offer. ``answer``: CLAIMED, or REFUSED: the offer does not
    stand.
    """

    answer: str
    claim: Claim | None

    @property
    def work_order(self) -> WorkOrder:
        assert self.claim is not None
        return self.claim.work_order


def take(
    lease: Lease, client: redis.Redis, keys: Keys, offer: Offer, claimant: str, worker: str = ""
) -> Taken:
    """Take this very offer, from a queue on which nothing else stands."""
    queue = f"only-{mint()}"
    client.zadd(keys.ready(queue), {str(offer): 0})
    claim = lease.take([queue], claimant, worker or f"host:{claimant}", f"claim-{offer}-{claimant}")
    assert claim is None or claim.token == offer.held_by(claimant)
    return Taken("REFUSED" if claim is None else "CLAIMED", claim)


def failed(code: str = "STEP_FAILED", *, recoverable: bool = True) -> Outcome:
    return Outcome(OutcomeKind.FAILED, failure=Failure(code, "it broke", recoverable))


def group(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    """A ``spark: false`` group with a no-op step."""
    return {"name": name, "needs": list(needs), "spark": False, "steps": NOOP, **more}


def join(name: str, *needs: str, rule: Any = "all_succeeded") -> dict[str, Any]:
    return {"name": name, "needs": list(needs), "join": rule}
