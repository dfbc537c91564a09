"""A fleet on which nothing goes wrong but what a test does: the real reconciler on the model store,
called by hand.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar, cast

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.coordinators import StoreAtHand
from tests.simulation.model.store import ModelStore
from tests.simulation.stage.history import SETTINGS
from tests.simulation.stage.network import Connection
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.store.job_store import Store
from unstuck.in_process.at_once import AtOnce
from unstuck.in_process.worker_scripts import by_turn
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Outcome, OutcomeKind, Report
from unstuck.tasks.protocol.token import Offer, Token

T = TypeVar("T")


class _ImmediateStream:
    """A stream whose every report is handed over at once, by the test."""

    def __init__(self) -> None:
        self.reports: list[Delivered] = []

    def add(self, fields: dict[str, str]) -> None:
        if fields["kind"] != "due":
            self.reports.append(Delivered(f"{len(self.reports)}-0", Report.from_fields(fields)))

    def ack(self, ids: Any) -> list[str]:
        return list(ids)

    def count(self, counts: Any) -> None: ...


class FaultFreeConnection(Connection):
    """A connection on which nothing goes wrong."""

    def __init__(self) -> None:
        self.trouble = Trouble(random.Random(0), lambda: 0.0, ends=-1.0)

    def call(
        self,
        what: str,
        effect: Callable[[], T],
        lost: type[Exception] = ConnectionError,
        *,
        of_store: bool = True,
    ) -> T:
        return effect()

    def stall(self, what: str) -> None: ...

    def note(self, what: str) -> None: ...


class WakeUps:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.wake_ups: Counter[str] = Counter()

    def send_wake_ups(self, wake_ups: Mapping[str, int]) -> None:
        self.wake_ups.update(wake_ups)


class EmptyWarehouses:
    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        return PublishResult()

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        return PublishResult(failed=why)


class _Empty:
    """The broker of a fleet that takes every wake-up at once."""

    def length(self, queue: str) -> int:
        return 0


class FaultFree:
    """Jobs of one forked group on a fleet with a slot for each member.

    Time moves when the test says so.
    """

    def __init__(
        self,
        width: int,
        jobs: Sequence[str] = ("j",),
        *,
        dispatcher: WakeUps | None = None,
        warehouses: EmptyWarehouses | None = None,
        **group: Any,
    ) -> None:
        self.now = 1000.0
        self.stream, self.dispatcher = _ImmediateStream(), dispatcher or WakeUps()
        self.core = ModelStore(lambda: self.now, self.stream, lock_term=2.5, lease_ttl=15.0)
        words = count()
        idle = [
            RunnerInfo(
                id=f"r{n}",
                host="h",
                pid=n,
                worker_pid=1,
                queues=("spark",),
                heard_at=self.now,
                idle_since=1.0,
            )
            for n in range(width)
        ]
        store = cast(
            Store,
            StoreAtHand(
                FaultFreeConnection(), self.core, cast(Broker, _Empty()), lambda: {"spark": idle}
            ),
        )
        self.reconciler = Reconciler(
            *(
                store,
                self.dispatcher.send_wake_ups,
                cast(Warehouses, warehouses or EmptyWarehouses()),
                SETTINGS,
            ),
            lambda: f"w{next(words)}",
            AtOnce(),
            clock=lambda: self.now,
        )
        self.sweep = Sweep(store, self.reconciler, SETTINGS)
        group |= {
            "name": "g",
            "steps": [{"python": "model:run"}],
            "for_each": {"n": list(range(width))},
        }
        spec = JobSpec.model_validate({"name": "j", "groups": [group]}).to_json()
        for job in jobs:
            self.core.submit(JobRecord(job, "j", spec, "new"))
        self.sweep.run()
        self.now += 1.0

    @property
    def offers(self) -> list[Offer]:
        """Offers that stand ready, in the order in which they are taken."""
        return [offer for offer, _ in sorted(self.core.ready.get("spark", {}).items(), key=by_turn)]

    def lose(self, offer: Offer) -> None:
        del self.core.ready["spark"][offer]

    def claim(self, offer: Offer) -> Token:
        """Take this very offer."""
        self.lose(offer)
        self.core.ready["only"] = {offer: 0.0}
        claim = self.core.take(["only"], f"r-{offer}", "c", "w", f"e{offer.group}")
        assert claim is not None
        return claim.token

    def finish(self, token: Token, outcome: Outcome | None = None) -> None:
        outcome = outcome or Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, rows={"data": 1})
        self.core.finish(token, outcome, f"f{token.group}", f"r-{token.offer}")

    def deliver(self, *more: Delivered) -> None:
        """Hand all reports over, job by job."""
        reports, self.stream.reports = [*self.stream.reports, *more], []
        for job in {delivered.report.token.job: None for delivered in reports}:
            self.reconciler.reconcile(job, [d for d in reports if d.report.token.job == job])

    def state(self, group: str) -> GroupState:
        return self.core.jobs["j"].groups[group].state
