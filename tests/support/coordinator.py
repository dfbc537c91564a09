"""A coordinator for tests: the real parts on a real store, with the broker in the test's own hand.

Hints are kept in ``sent`` instead of going to Celery, so that a test can lose, double or delay them. The worker's side
is played with the real lease scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis

from tests.support.at_once import AtOnce
from tests.support.servers import wait_until
from unstuck.coordinator.client import Client
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing.publisher import Warehouses
from unstuck.coordinator.publishing.staging_gc import StagingCollector
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.jobs import Store
from unstuck.coordinator.store.reports import ReportStream
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.views.jobs import JobView
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lease import Claim, FinishAnswer, Lease
from unstuck.tasks.protocol.processes import ProcessRegistry, RunnerStatus
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Hint, Token
from unstuck.tasks.settings import Settings
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


class Coordinator:
    """One coordinator process, without the process."""

    def __init__(
        self,
        url: str,
        warehouse: Path,
        client: redis.Redis | None = None,
        background: Any = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings(redis_url=url, warehouse=str(warehouse), **settings)
        self.redis = client or connect(url)
        self.keys = Keys(self.settings.prefix)
        self.store = Store.of(self.settings, self.redis)
        self.sent: list[Hint] = []  # instead of to Celery
        self.warehouses = WatchedWarehouses()
        background = background or AtOnce()
        self.reconciler = Reconciler(self.store, self._send, self.warehouses, self.settings, mint, background)
        self.collector = StagingCollector(StagingIndex(self.redis, self.keys), self.store, background)
        self.sweep = Sweep(self.store, self.reconciler, self.settings, collector=self.collector)
        name = f"host:1:{mint()}"
        self.stream = ReportStream(self.redis, self.keys, name)
        self.stream.open()
        self.heartbeat = Heartbeat(self.redis, self.keys, name)
        self.consumer = Consumer(self.stream, self.reconciler, self.sweep, self.settings, self.heartbeat)
        self.client = Client(self.settings, redis_client=self.redis)
        self.lease = Lease(self.redis, self.keys, self.settings.lease_ttl)

    def _send(self, hints: Sequence[tuple[str, Hint]]) -> None:
        self.sent.extend(hint for _, hint in hints)

    def note_runner(self, name: str, heard: float = 0.0, **fields: Any) -> None:
        """As if the watchdog of a runner of queue ``light`` had described it ``heard`` seconds ago."""
        known: dict[str, Any] = {"host": "host-9", "pid": 77, "worker_pid": 70, "queues": ("light",), **fields}
        ProcessRegistry(self.redis, self.keys).note(lambda now: RunnerStatus(id=name, seen=now - heard, **known))

    def submit(self, *groups: dict[str, Any], name: str = "job", **spec: Any) -> str:
        """Submit a job of these groups; a group without steps that is no join gets a no-op."""
        return self.client.submit({"name": name, "groups": list(groups), **spec}).id

    def show(self, job: str) -> JobView:
        return self.client.show(job)

    def status(self, job: str) -> Status:
        return self.show(job).job.status

    def status_of_record(self, job: str) -> Status:
        """The status as stored, of a job whose groups may not be readable."""
        return Status(str(self.redis.hget(self.keys.of(job).job, "status")))

    def events(self, job: str, group: str | None = None) -> list[str]:
        """Kinds of events, in order."""
        return [
            event["kind"]
            for _, event in self.client.queries.events(job)
            if group is None or event.get("group") == group
        ]

    def read(self) -> None:
        """Apply every report that is in the stream, and all that they lead to, without collecting."""
        with patch.object(self.consumer, "_beat"):  # a coordinator that the list of the fleet does not show
            while entries := self.stream.read(500, 0.001):
                self.consumer.apply(entries)
            while self.consumer.again(time.monotonic()):
                pass

    def hints(self, job: str | None = None) -> list[Hint]:
        """Take the hints that were sent, as the broker would hand them out."""
        mine = [hint for hint in self.sent if job in (None, hint.job)]
        taken = set(mine)
        self.sent[:] = [hint for hint in self.sent if hint not in taken]
        return mine

    def claim(self, hint: Hint, claimant: str = "runner1") -> Claim:
        return self.lease.claim(hint, claimant, f"host:{claimant}", f"claim-{hint}-{claimant}")

    def finish(self, token: Token, outcome: Outcome = SUCCEEDED, event: str = "") -> FinishAnswer:
        return self.lease.finish(token, outcome, event or mint())

    def work(self, hint: Hint, outcome: Outcome = SUCCEEDED, claimant: str = "runner1") -> FinishAnswer:
        """Claim and finish one attempt."""
        assert self.claim(hint, claimant).answer == "CLAIMED"
        return self.finish(hint.held_by(claimant), outcome)

    def drive(self, job: str, rounds: int = 1000) -> Status:
        """Work off every hint of the job until it has ended."""
        for _ in range(rounds):
            self.read()
            for hint in self.hints(job):
                self.work(hint)
            if self.status(job).terminal:
                return self.status(job)
        raise AssertionError(f"job {job} has not ended after {rounds} rounds: {self.show(job)}")

    def due_in(self, job: str) -> float:
        view = self.show(job)
        assert view.due is not None
        return view.due - view.at

    def wait_for(self, job: str, *status: Status, timeout: float = 10) -> None:
        wait_until(lambda: self.status(job) in status, timeout, f"job {job} to be {status}")


def failed(code: str = "STEP_FAILED", *, recoverable: bool = True) -> Outcome:
    return Outcome(OutcomeKind.FAILED, failure=Failure(code, "it broke", recoverable))


def group(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    """A ``spark: false`` group with a no-op step."""
    return {"name": name, "needs": list(needs), "spark": False, "steps": NOOP, **more}


def join(name: str, *needs: str, rule: Any = "all_succeeded") -> dict[str, Any]:
    return {"name": name, "needs": list(needs), "join": rule}
