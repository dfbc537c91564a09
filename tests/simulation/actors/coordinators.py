"""The coordinators: the real consumer, sweep and reconciler, in threads that hand over their turn
at every call.

A coordinator dies or freezes before or after any call to the store, the broker or the warehouse; it
loses requests and replies. It is started again a little later, with nothing of what it knew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import redis

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.dispatch import DispatcherAtHand, WarehousesAtHand
from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stream import ReportStream as ModelStream
from tests.simulation.stage.network import Connection
from tests.simulation.stage.stage import Stage, Turn
from tests.simulation.stage.store_faults import NEWER
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.decision import Acks, Decision
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.background import Background, Work
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import Begun, CommitAnswer, EndAnswer
from unstuck.coordinator.store.job_store import NO_OFFERS, Store
from unstuck.coordinator.store.reports import ReportStream, StreamEntry
from unstuck.in_process.at_once import AtOnce
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.settings import Settings

T = TypeVar("T")


class StoreAtHand:
    """The store as a coordinator sees it: what the reconciler and the sweep ask for."""

    def __init__(
        self,
        connection: Connection,
        core: ModelStore,
        broker: Broker,
        listening: Callable[[], dict[str, list[RunnerInfo]]],
        knows: Callable[[int], bool] = lambda schema: True,
    ) -> None:
        """``knows``: whether what has this schema can be read by the release at hand."""
        self._connection, self._core, self._broker, self._listening = (
            connection,
            core,
            broker,
            listening,
        )
        self._knows = knows

    def _call(self, what: str, effect: Callable[[], T]) -> T:
        return self._connection.call(what, effect)

    def begin(self, job: str, owner: str, groups: Sequence[str] = ()) -> Begun:
        """The attempts, which the real store reads in the same round trip, are read one by one."""

        def begin_and_read() -> Begun:
            begun = self._core.begin(job, owner)
            stored = self._core.jobs.get(job)
            return replace(
                begun, ended=bool(groups) and stored is not None and stored.record.terminal
            )

        return self._call(f"begin {job}", begin_and_read)

    def end(self, job: str, owner: str, *, anyway: bool = False) -> EndAnswer:
        return self._call(f"end {job}", lambda: self._core.end(job, owner, anyway=anyway))

    def load(
        self,
        job: str,
        cached: JobState | None = None,
        changed: Sequence[str] | None = None,
        begun: Begun | None = None,
        *,
        bare: bool = False,
    ) -> JobState | None:
        if bare:
            record = self.job(job)
            return None if record is None else JobState(plan_of(record.spec), record, {}, {}, {})
        if (
            cached is not None
            and self._call(f"look {job}", lambda: self._core.commit_id(job)) == cached.job.commit
        ):
            wanted = list(cached.active if changed is None else changed)
            for name, attempt in self._call(
                f"read {job}", lambda: self._core.attempts_of(job, wanted)
            ).items():
                if attempt is None:
                    cached.attempts.pop(name, None)
                else:
                    cached.attempts[name] = attempt
            return cached
        state = self._call(f"load {job}", lambda: self._core.load(job))
        if state is not None:
            if not self._knows(state.job.schema):
                self._connection.note(f"leaves to a newer coordinator: {job}")
            readable(state.job, self._knows)
        return state

    def commit(
        self, decision: Decision, commit_id: str, due_seen: str, acks: Acks, summary: str
    ) -> CommitAnswer:
        assert summary
        moves = ", ".join(
            f"{e.get('group', '')}→{e['kind']} {e.get('code', '')}".rstrip()
            for e in decision.events
        )

        def effect() -> CommitAnswer:
            answer = self._core.commit(decision, commit_id, due_seen, acks)
            self._connection.note(f"commit {decision.old.id}: {answer} [{moves}]")
            return answer

        return self._call(f"commit {decision.old.id} {moves}", effect)

    def job(self, job: str) -> JobRecord | None:
        record = self._call(f"look at {job}", lambda: self._core.job(job))
        if record is not None:
            readable(record, self._knows)
        return record

    def command(
        self,
        commanded: JobRecord,
        old: JobRecord,
        command_id: str,
        event: Mapping[str, Any],
        *,
        plans: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> CommitAnswer:
        def effect() -> CommitAnswer:
            answer = self._core.command(
                commanded, old, command_id, event, plans=plans, params=params
            )
            self._connection.note(f"{event['kind']} {old.id} ({old.status}): {answer}")
            return answer

        return self._call(f"command {old.id} {event['kind']}", effect)

    def acknowledge(
        self,
        job: str,
        due: float | None,
        due_seen: str,
        acks: Acks,
        offers: Mapping[Offer, str] = NO_OFFERS,
    ) -> None:
        self._call(
            f"acknowledge {job}", lambda: self._core.acknowledge(job, due, due_seen, acks, offers)
        )

    def halt(
        self, job: str, reason: Reason, commit_id: str, now: float, tell: Callable[[Decision], None]
    ) -> None:
        self._call(
            f"halt {job} {reason.text}", lambda: self._core.halt(job, reason, commit_id, now, tell)
        )

    def listening(self, now: float, max_age: float) -> dict[str, list[RunnerInfo]]:
        return self._call("listening", self._listening)

    def lanes(self) -> set[str]:
        return self._call("lanes", lambda: set(self._core.ready))

    def free_slots(self) -> None:
        self._call("free slots", self._core.free_slots)

    def wake_ups(
        self, lanes: Sequence[str], listening: Mapping[str, Sequence[RunnerInfo]], now: float
    ) -> dict[str, int]:
        return self._call(
            "wake-ups", lambda: self._core.wake_ups(sorted(lanes), listening, self._broker.length)
        )

    def tick(self, period: float, lease_ttl: float) -> tuple[float, float]:
        return self._call("tick", lambda: self._core.tick(period, lease_ttl))

    def due(self, now: float, limit: int) -> list[str]:
        return self._call("due", lambda: self._core.due_by(now, limit))

    def first_due(self, limit: int) -> tuple[float, dict[str, float]]:
        """None: looks at the exact time would hide a sweep that passes over a job, and it alone
        must be enough.
        """
        return self._core.now, {}

    def silence(self) -> float:
        return self._call("silence", lambda: self._core.now - self._core.alive_at)

    def forget_ended(self, now: float) -> int:
        return 0


def readable(record: JobRecord, knows: Callable[[int], bool]) -> None:
    """As ``JobRecord.from_fields``, for a release that reads what it ``knows``. Raises:
    NewerJob.
    """
    if not knows(record.schema):
        raise NewerJob(f"its schema is {record.schema}, which this release cannot read")


class StreamAtHand:
    """The report stream as one consumer sees it."""

    def __init__(
        self, connection: Connection, stream: ModelStream, name: str, knows: Callable[[int], bool]
    ) -> None:
        self._connection, self._stream, self._name, self._knows = connection, stream, name, knows

    def _call(self, what: str, effect: Callable[[], T]) -> T:
        return self._connection.call(what, effect)

    def open(self) -> None:
        self._call("open the report stream", lambda: None)

    def read(self, count: int, block: float) -> list[StreamEntry]:
        actor, stage = Turn.current(), self._connection.stage
        at = self._stream.next_at()
        if at is None or at > stage.now:
            actor.pause(min(block, block if at is None else max(0.0, at - stage.now)))
        return self._known(self._call("read reports", lambda: self._stream.read(self._name, count)))

    def claim_idle(self, idle: float, count: int) -> list[StreamEntry]:
        return self._known(
            self._call(
                "claim idle reports", lambda: self._stream.claim_idle(self._name, idle, count)
            )
        )

    def _known(self, entries: list[StreamEntry]) -> list[StreamEntry]:
        """What this release can read, it reads: the code under test knows one version alone."""
        return [
            replace(entry, fields={**entry.fields, "v": "1"}) if self._knows(NEWER) else entry
            for entry in entries
        ]

    def dead_letter(self, entries: Sequence[StreamEntry], reason: str, counter: str) -> int:
        return self._call("dead letter", lambda: self._stream.dead_letter(entries, reason))

    def ack(self, entries: Sequence[StreamEntry]) -> None:
        if entries:
            self._call("ack", lambda: self._stream.drop(entries))

    def trim(self) -> int:
        return 0


class _Stopping:
    """The consumer's stop flag, whose wait takes virtual time."""

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        Turn.current().pause(seconds)
        return False


class _NoHeartbeat:
    """It is for people, and nobody looks."""

    def beat(self, read_ago: float | None, swept_ago: float | None) -> None: ...

    def forget_silent(self) -> None: ...

    def leave(self) -> None: ...


class Behind:
    """Runs work in turns of its own: as ``Background``, but for a process that never hangs for
    longer than its term.
    """

    exhausted = False

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        self._begin = begin
        self._keys: list[Hashable] = []  # once for each turn that works on it

    def __call__(self, key: Hashable, place: str, work: Work, *, new_try: bool = False) -> bool:
        if key in self._keys and not new_try:
            return False
        self._keys.append(key)

        def whole() -> None:
            try:
                work(lambda: None)
            finally:
                self._keys.remove(key)

        self._begin(whole)
        return False


class Office:
    """One coordinator process: a consumer thread and, where beat fires, a sweeping thread.

    It is always restarted.
    """

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelStore,
        stream: ModelStream,
        broker: Broker,
        depot: Depot,
        settings: Settings,
        listening: Callable[[], dict[str, list[RunnerInfo]]],
        wrote: Callable[[LogEntry], None],
        answered: Callable[[str], None],
        name: str,
        *,
        beaten: bool,
        knows: Callable[[int], bool],
        behind: bool,
    ) -> None:
        """``behind``: it publishes in threads of their own."""
        self._knows, self._behind = knows, behind
        self._stage, self._settings, self._beaten = stage, settings, beaten
        self._stream, self._broker, self._depot = stream, broker, depot
        self._core, self._listening, self._trouble = core, listening, trouble
        self._wrote, self._answered = wrote, answered
        self.name = name
        self._lives = 0
        self._threads: list[Turn] = []
        self._start(0.0)

    def _start(self, delay: float) -> None:
        self._lives += 1
        connection = Connection(self._stage, self._trouble, self._die)
        store = StoreAtHand(connection, self._core, self._broker, self._listening, self._knows)
        dispatcher = DispatcherAtHand(connection, self._broker)
        warehouses = WarehousesAtHand(connection, self._depot, self._wrote, self._answered)
        reconciler = Reconciler(
            *(cast(Store, store), dispatcher.send_wake_ups, cast(Warehouses, warehouses)),
            *(self._settings, self._stage.mint),
            cast(Background, Behind(self._publish) if self._behind else AtOnce()),
            sleep=lambda seconds: Turn.current().pause(seconds),
            clock=lambda: self._stage.now,
            uniform=self._stage.waits.uniform,
        )
        sweep = Sweep(cast(Store, store), reconciler, self._settings)
        reports = StreamAtHand(connection, self._stream, f"{self.name}.{self._lives}", self._knows)
        consumer = Consumer(
            *(
                cast(ReportStream, reports),
                reconciler,
                sweep,
                self._settings,
                cast(Heartbeat, _NoHeartbeat()),
            ),
            clock=lambda: self._stage.now,
            uniform=self._stage.waits.uniform,
        )
        consumer.stopping = cast(Any, _Stopping())
        self._threads = [Turn(self._stage, self.name, consumer.run, delay)]
        if self._beaten:
            self._threads.append(Turn(self._stage, f"{self.name}/beat", self._beat(sweep), delay))

    def _publish(self, work: Callable[[], None]) -> None:
        self._threads.append(Turn(self._stage, f"{self.name}/publisher", work))

    def _beat(self, sweep: Sweep) -> Callable[[], None]:
        def life() -> None:
            while True:
                with suppress(redis.ConnectionError):  # the task fails; beat fires the next
                    sweep.run()
                Turn.current().pause(self._settings.sweep_every)

        return life

    def report_added(self, at: float) -> None:
        """The stream has something: XREADGROUP returns, unless its process is frozen."""
        consumer = self._threads[0]
        if not consumer.dead:
            consumer.wake(at)

    def _die(self) -> None:
        """The process is gone with all its threads; another is started."""
        mine = Turn.current()
        for thread in self._threads:
            thread.dead = True
            if thread is not mine:
                thread.ready_at = self._stage.now  # to unwind
        delay = self._stage.rng.uniform(0.2, 8.0)
        self._stage.log(self.name, f"DIES; another starts in {delay:.1f}s")
        self._trouble.disturb(self._stage.now + delay)
        self._start(delay)
