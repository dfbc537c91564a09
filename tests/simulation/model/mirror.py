"""A store that is two: the model, and the real ``Store``, ``Lease`` and scripts on a real Valkey,
call by call.
"""

# The history is that of the model. Every write goes to both, every answer must be the same, and
# what stands afterwards must be the same. The real scripts run unchanged but for one thing: they
# read the clock of the stage where they ask for TIME. Expiries of locks follow the same clock.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import redis

from tests.simulation.model.store import ModelStore
from tests.simulation.model.stream import ReportStream
from tests.simulation.rules.broken import Broken
from unstuck.coordinator.model.decision import Acks, Decision
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import Begun, CommitAnswer, EndAnswer, NotEnded, Submission
from unstuck.coordinator.store.job_store import NO_OFFERS, REPORT_GROUP, Store
from unstuck.coordinator.store.submissions import Submissions
from unstuck.in_process.worker_scripts import by_turn
from unstuck.tasks.protocol.keys import Keys, queue_of
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.lease import Claim, FinishAnswer, Lease, RenewAnswer

AGREE = "The model and the real store agree"
KEYS = Keys("mirrored")
CLOCK = "clock of the stage"  # beside the keys of the product
_TIME = f"redis.call('HMGET', '{CLOCK}', 's', 'us')"


class ClockedRedis(redis.Redis):
    """A client whose scripts read a clock that the test sets."""

    def register_script(self, script: Any) -> Any:
        return super().register_script(script.replace("redis.call('TIME')", _TIME))


class Mirrored(ModelStore):
    """The model, and beside it the real store. ``client`` must decode responses; its server is
    emptied.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        stream: ReportStream,
        *,
        lock_term: float,
        lease_ttl: float,
        client: ClockedRedis,
        bytes_client: redis.Redis,
        compared: Callable[[str], None],
    ) -> None:
        """``compared``: is told of every answer that was the same."""
        super().__init__(clock, stream, lock_term=lock_term, lease_ttl=lease_ttl)
        self._redis, self._bytes, self._compared, self._reports = (
            client,
            bytes_client,
            compared,
            stream,
        )
        client.flushall()
        client.xgroup_create(KEYS.reports, REPORT_GROUP, id="0", mkstream=True)
        self._real = Store(
            Settings(prefix="mirrored", lock_ttl=2 * lock_term, lease_ttl=lease_ttl), client
        )
        self._submissions = Submissions(client, KEYS)
        self._entries: dict[str, str] = {}  # ids on the model's stream → on the real one
        self._due_seen: dict[str, str] = {}

    # ---- both
    # ----------------------------------------------------------------------------------------

    def _same(self, what: str, job: str, model: Any, real: Any) -> None:
        if model != real:
            raise Broken(
                AGREE, f"{what} of {job}: the model answers {model}, the real store {real}"
            )
        self._compared(f"{what}: {model}")

    def _both(
        self, job: str, on_model: Callable[[], Any], on_real: Callable[[], Any]
    ) -> tuple[Any, Any]:
        now = self.now
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(CLOCK, mapping={"s": int(now), "us": round((now - int(now)) * 1e6)})
        if job in self.jobs:
            stored, keys = self.jobs[job], KEYS.of(job)
            for key, until in ((keys.lock, stored.lock[1]), (keys.dirty, stored.dirty_until)):
                # Virtual time stands still within a call, real time does not: what is left of a
                # lock is there or not. Less than the minute after which a lock is taken for one
                # that never ends.
                pipe.pexpire(key, 0 if until <= now else max(round((until - now) * 1000), 50_000))
        pipe.xlen(KEYS.reports)
        length = pipe.execute()[-1]
        first = self._reports.seq
        model, real = on_model(), on_real()
        self._deliver(first, length)
        return model, real

    def _deliver(self, first: int, length: int) -> None:
        """What was reported is pending on both streams, as often as on the model's; what that has
        lost comes later.
        """
        copies = [f"{n}-0" for n in range(first + 1, self._reports.seq + 1)]
        if not copies:
            return
        added: Any = self._redis.xlen(KEYS.reports)
        for entry in copies[added - length :]:
            self._redis.xadd(KEYS.reports, {"copy of": entry})
        answer: Any = self._redis.xreadgroup(REPORT_GROUP, "mirror", {KEYS.reports: ">"}, count=100)
        batches = (
            answer.values() if isinstance(answer, dict) else [stream[1] for stream in answer or ()]
        )
        read = [
            entry
            for batch in batches
            for entry in (batch[0] if batch and isinstance(batch[0], list) else batch)
        ]
        self._entries.update(
            zip(copies, (entry_id for entry_id, _ in read[-len(copies) :]), strict=True)
        )

    def _acks(self, acks: Acks) -> Acks:
        ids = {entry: self._entries.get(entry, "1-1") for entry in acks.ids}
        return Acks(
            tuple(ids.values()),
            acks.counts,
            {ids[entry]: event for entry, event in acks.refused.items()},
        )

    def compare(self, job_id: str) -> None:
        """What stands of a job is the same on both."""
        real, model, stored = self._real.load(job_id), self.load(job_id), self.jobs[job_id]
        assert real is not None
        assert model is not None
        keys, pipe = KEYS.of(job_id), self._redis.pipeline(transaction=False)
        pipe.hgetall(keys.inputs).hgetall(keys.plans).xlen(keys.events).zscore(
            KEYS.due, job_id
        ).xrange(KEYS.outbox)
        inputs, plans, events, score, outbox = pipe.execute()
        pairs: dict[str, tuple[Any, Any]] = {
            "record": (_rounded(replace(model.job, schema=1)), _rounded(real.job)),
            "groups": tuple(
                {n: _rounded(r) for n, r in state.groups.items()} for state in (model, real)
            ),  # type: ignore[dict-item]
            "attempts": tuple(
                {n: _rounded(a) for n, a in state.attempts.items()} for state in (model, real)
            ),  # type: ignore[dict-item]
            "fork values": (model.collected, real.collected),
            "frozen inputs": (stored.frozen, inputs),
            "plans": (stored.plans, plans),
            "number of events": (len(stored.events) + 1, events),
            "outbox": (self.outbox, [fields["notice"] for _, fields in outbox]),
        }
        for what, (on_model, on_real) in pairs.items():
            if on_model != on_real:
                raise Broken(
                    AGREE,
                    f"{what} of {job_id}: the model holds {on_model}, the real store {on_real}",
                )
        due = self.due.get(job_id)
        self._same_offers()
        if (score is None) != (due is None) or (due is not None and abs(score - due) > 1e-5):
            raise Broken(
                AGREE, f"{job_id} is due at {due} on the model, at {score} on the real store"
            )

    def remember(self) -> Callable[[], None]:
        back = super().remember()
        names = [key for key in self._bytes.keys("*") if key != CLOCK.encode()]  # type: ignore[union-attr]
        pipe = self._bytes.pipeline()
        for name in names:
            pipe.dump(name)
        dumps = dict(zip(names, pipe.execute(), strict=True))

        def restore() -> None:
            back()
            pipe = self._bytes.pipeline()
            pipe.flushall()
            for name, dump in dumps.items():
                if dump is not None:
                    pipe.restore(name, 0, dump)
            pipe.execute()
            for job_id in self.jobs:
                self.compare(job_id)

        return restore

    # ---- tasks/transport/lua
    # -----------------------------------------------------------------------------------

    def take(
        self,
        queues: Sequence[str],
        caller: str,
        claimant: str,
        worker: str,
        event: str,
        *,
        leaves: bool = False,
    ) -> Claim | None:
        arguments = (claimant, worker, event)
        model, real = self._both(
            "",
            lambda: super(Mirrored, self).take(queues, caller, *arguments, leaves=leaves),
            # The wait itself was on the stage.
            lambda: self._lease_of(caller).take(
                queues, *arguments, linger=0.001 if leaves else 0.0
            ),
        )
        self._same_claims(caller, model, real)
        return model  # type: ignore[no-any-return]

    def _same_claims(self, caller: str, model: Claim | None, real: Claim | None) -> None:
        tokens = [claim and claim.token for claim in (model, real)]
        if tokens[0] != tokens[1]:
            raise Broken(
                AGREE, f"take of {caller}: the model gives {tokens[0]}, the real store {tokens[1]}"
            )
        self._compared(f"take: {'EMPTY' if model is None else 'CLAIMED'}")
        if model is not None and real is not None and model.work_order != real.work_order:
            raise Broken(
                AGREE,
                (
                    f"{real.token}: the model hands out {model.work_order}, the real store "
                    f"{real.work_order}"
                ),
            )
        self._same_offers()

    def _same_offers(self) -> None:
        for lane, offers in self.ready.items():
            model = [(str(offer), turn) for offer, turn in sorted(offers.items(), key=by_turn)]
            real = self._redis.zrange(KEYS.ready(lane), 0, -1, withscores=True)
            if [tuple(one) for one in real] != model:  # type: ignore[union-attr]
                raise Broken(
                    AGREE, f"ready in {lane}: the model holds {model}, the real store {real}"
                )
        standing = {lane for lane, offers in self.ready.items() if offers}
        listed = self._redis.zrange(KEYS.lanes, 0, -1)
        if not standing <= set(listed):  # type: ignore[arg-type]
            raise Broken(
                AGREE,
                f"lanes: the model says offers stand in {standing}, the real store lists {listed}",
            )
        self._same_slots()

    def _same_slots(self) -> None:
        model = sorted(f"{pool}/{offer}" for pool, offer in self.held)
        real = self._redis.zrange(KEYS.pool_slots, 0, -1)
        if real != model:
            raise Broken(AGREE, f"slots: the model says {model} hold one, the real store {real}")

    def set_pool(self, name: str, slots: int) -> None:
        super().set_pool(name, slots)
        self._redis.hset(KEYS.pools, name, slots)

    def free_slots(self) -> None:
        super().free_slots()
        self._real.free_slots()
        self._same_slots()

    def wake_ups(
        self,
        lanes: Iterable[str],
        listening: Mapping[str, Sequence[RunnerInfo]],
        waiting: Callable[[str], int],
    ) -> dict[str, int]:
        names = list(lanes)
        pipe = self._redis.pipeline(transaction=False)
        for queue in {*map(queue_of, names), *listening}:
            pipe.delete(KEYS.queue(queue))
            if count := waiting(queue):
                pipe.rpush(KEYS.queue(queue), *["a wake-up"] * count)
        pipe.hgetall(KEYS.polled)
        polled = {runner: round(float(at), 5) for runner, at in pipe.execute()[-1].items()}
        self._same(
            "who polled",
            "all",
            {runner: round(at, 5) for runner, at in self.polled.items()},
            polled,
        )
        model = super().wake_ups(names, listening, waiting)
        if model != (real := self._real.wake_ups(names, listening, self.now)):
            raise Broken(AGREE, f"wake-ups: the model sends {model}, the real store {real}")
        self._compared(f"wake-ups for {len(model)} queues")
        return model

    def roll_back(self, lane: str, standing: Mapping[Offer, float]) -> None:
        super().roll_back(lane, standing)
        self._redis.delete(KEYS.ready(lane))
        if standing:
            self._redis.zadd(
                KEYS.ready(lane), {str(offer): turn for offer, turn in standing.items()}
            )
            self._redis.zadd(KEYS.lanes, {lane: 0})

    def spoil(self, lane: str, offers: Sequence[Offer]) -> None:
        super().spoil(lane, offers)
        if offers:
            self._redis.zadd(KEYS.ready(lane), {str(offer): 0 for offer in offers})
            self._redis.zadd(KEYS.lanes, {lane: 0})
        else:
            self._redis.delete(KEYS.ready(lane))

    def _lease_of(self, caller: str) -> Lease:
        return Lease(self._redis, KEYS, self.lease_ttl, caller)

    def renew(self, token: Token, worker: str) -> RenewAnswer:
        model, real = self._both(
            token.job,
            lambda: super(Mirrored, self).renew(token, worker),
            lambda: self._lease_of("").renew(token, worker),
        )
        self._same("renew", token.job, model, real)
        return model  # type: ignore[no-any-return]

    def finish(self, token: Token, outcome: Outcome, event: str, caller: str) -> FinishAnswer:
        arguments = (token, outcome, event)
        model, real = self._both(
            token.job,
            lambda: super(Mirrored, self).finish(*arguments, caller),
            lambda: self._lease_of(caller).finish(*arguments),
        )
        self._same("finish", token.job, model, real)
        return model  # type: ignore[no-any-return]

    def finish_and_take(
        self,
        token: Token,
        outcome: Outcome,
        event: str,
        caller: str,
        queues: Sequence[str],
        *taking: str,
    ) -> tuple[FinishAnswer, Claim | None]:
        finishing = (token, outcome, event)
        plain = super()
        model, (word, _, real) = self._both(
            token.job,
            lambda: (plain.finish(*finishing, caller), plain.take(queues, caller, *taking)),
            lambda: self._lease_of(caller).finish_and_take(*finishing, queues, *taking),
        )
        self._same("finish", token.job, model[0], word)
        self._same_claims(caller, model[1], real)
        return model  # type: ignore[no-any-return]

    # ---- coordinator/store/lua
    # -----------------------------------------------------------------------------

    def submitted(self, key: str, fingerprint: str) -> str | None:
        model = super().submitted(key, fingerprint)
        self._same("look for a key", key, model, self._submissions.submitted(key, fingerprint))
        return model

    def submit(
        self, record: JobRecord, fingerprint: str = "f", reason: str = ""
    ) -> tuple[str, bool]:
        plan = plan_of(record.spec)
        plans = record.group_plans(plan)
        submission = Submission(record, plans, plan.params, fingerprint)
        model, real = self._both(
            record.id,
            lambda: _or_refused(lambda: super(Mirrored, self).submit(record, fingerprint, reason)),
            lambda: _or_refused(lambda: self._submissions.submit(submission, "{}", reason)),
        )
        self._same(f"submit{' a retry' if record.retry_of else ''}", record.id, model, real)
        if isinstance(model, Status):
            raise NotEnded(model)
        for job_id in (model[0], record.retry_of):
            if job_id:
                self.compare(job_id)
        return model  # type: ignore[no-any-return]

    def begin(self, job_id: str, owner: str) -> Begun:
        model, real = self._both(
            job_id,
            lambda: super(Mirrored, self).begin(job_id, owner),
            lambda: self._real.begin(job_id, owner),
        )
        self._same("begin", job_id, model.answer, real.answer)
        self._due_seen[model.due_seen] = real.due_seen
        times = [
            tuple(round(at, 5) for at in (b.now, b.alive_at, b.grace_until)) for b in (model, real)
        ]
        if times[0] != times[1]:
            raise Broken(
                AGREE,
                f"begin of {job_id}: the model's times are {times[0]}, the real store's {times[1]}",
            )
        return model  # type: ignore[no-any-return]

    def end(self, job_id: str, owner: str, *, anyway: bool = False) -> EndAnswer:
        model, real = self._both(
            job_id,
            lambda: super(Mirrored, self).end(job_id, owner, anyway=anyway),
            lambda: self._real.end(job_id, owner, anyway=anyway),
        )
        self._same("end", job_id, model, real)
        return model  # type: ignore[no-any-return]

    def commit(self, decision: Decision, commit_id: str, due_seen: str, acks: Acks) -> CommitAnswer:
        job_id = decision.old.id
        model, real = self._both(
            job_id,
            lambda: super(Mirrored, self).commit(decision, commit_id, due_seen, acks),
            lambda: self._real.commit(
                decision, commit_id, self._due_seen[due_seen], self._acks(acks), "{}"
            ),
        )
        self._same("commit", job_id, model, real)
        self.compare(job_id)
        return model  # type: ignore[no-any-return]

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
        arguments = (commanded, old, command_id, event)
        model, real = self._both(
            old.id,
            lambda: super(Mirrored, self).command(*arguments, plans=plans, params=params),
            lambda: self._real.command(*arguments, plans=plans, params=params),
        )
        self._same("command", old.id, model, real)
        self.compare(old.id)
        return model  # type: ignore[no-any-return]

    def acknowledge(
        self,
        job_id: str,
        due: float | None,
        due_seen: str,
        acks: Acks,
        offers: Mapping[Offer, str] = NO_OFFERS,
    ) -> None:
        self._both(
            job_id,
            lambda: super(Mirrored, self).acknowledge(job_id, due, due_seen, acks, offers),
            lambda: self._real.acknowledge(
                job_id, due, self._due_seen[due_seen], self._acks(acks), offers
            ),
        )
        self._same_offers()
        if due is None:
            self.compare(job_id)

    def halt(
        self,
        job_id: str,
        reason: Reason,
        commit_id: str,
        now: float,
        tell: Callable[[Decision], None],
    ) -> None:
        arguments = (job_id, reason, commit_id, now, tell)
        self._both(
            job_id,
            lambda: super(Mirrored, self).halt(*arguments),
            lambda: self._real.halt(*arguments),
        )

    def tick(self, period: float, lease_ttl: float) -> tuple[float, float]:
        model, real = self._both(
            "",
            lambda: super(Mirrored, self).tick(period, lease_ttl),
            lambda: self._real.tick(period, lease_ttl),
        )
        if any(abs(one - other) > 1e-5 for one, other in zip(model, real, strict=True)):
            raise Broken(AGREE, f"tick: the model answers {model}, the real store {real}")
        return model  # type: ignore[no-any-return]


def _rounded(record: Any) -> Any:
    """A record with its times to the tenth of a millisecond: JSON in Lua keeps 14 digits."""
    values: Iterable[tuple[str, Any]] = (
        (item.name, getattr(record, item.name)) for item in fields(record)
    )
    return replace(
        record, **{name: round(value, 4) for name, value in values if isinstance(value, float)}
    )


def _or_refused(submit: Callable[[], Any]) -> Any:
    """What it answers; or the status of a job that may not be retried."""
    try:
        return submit()
    except NotEnded as error:
        return error.status
