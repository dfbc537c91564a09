"""The model of the store: what the scripts of the worker and of the coordinator do, on Python values.

Every method is one script and happens at once. It must hold no logic of its own: ``test_model.py`` runs the same
calls against this and against the scripts on a real Valkey, and compares every answer and every record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.model.claimed import Claimed
from tests.simulation.model.stored import Reports, StoredJob, Watching
from unstuck.coordinator.model.decision import Acks, Decision, Guard
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, Status
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import BeginAnswer, Begun, CommitAnswer, EndAnswer, KeyTaken, NotEnded
from unstuck.coordinator.store.job_store import HALTED_LOOK, NO_OFFERS
from unstuck.coordinator.store.runner_wake_ups import idle_runner
from unstuck.tasks.protocol.keys import pool_of, queue_of
from unstuck.tasks.protocol.processes import RunnerStatus
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, Token, split_member
from unstuck.tasks.transport.lease import FinishAnswer, RenewAnswer


class ModelStore:
    """All jobs, the due index, the sweep's heartbeat."""

    def __init__(self, clock: Callable[[], float], stream: Reports, *, lock_ttl: float, lease_ttl: float) -> None:
        self._clock = clock
        self._stream = stream
        self.lock_ttl = lock_ttl
        self.lease_ttl = lease_ttl
        self.jobs: dict[str, StoredJob] = {}
        self.due: dict[str, float] = {}
        self.keys: dict[str, tuple[str, str]] = {}  # submit key → job, and the fingerprint of its spec
        self.alive_at = 0.0
        self.grace_until = 0.0
        self.period = 1.0
        self.ready: dict[str, dict[Offer, float]] = {}  # lane → offers that stand, with their turns
        self.pools: dict[str, int] = {}  # pool → its slots, where somebody has set them
        self.held: set[tuple[str, Offer]] = set()  # the attempts that hold a slot of a pool
        self.turn: dict[str, float] = {}  # queue → the turn that was taken last
        self.polled: dict[str, float] = {}
        self.taken: dict[str, tuple[str, Offer | None]] = {}  # caller → the claimant and the offer of its last take
        self.finished: dict[str, tuple[str, FinishAnswer]] = {}  # caller → the event and the answer of its last finish
        self.outbox: list[str] = []
        self.notify: Callable[[str], None] = lambda queue: None  # wakes who waits for an offer on the queue
        self.watching: Watching | None = None
        self.skew = 0.0  # of the store's clock against that of the stage
        self.set_back = False  # it was set back once
        self.newer: set[str] = set()  # claimants of a newer release, whose reports only such a one can read

    @property
    def now(self) -> float:
        """Seconds in microseconds' precision, as the scripts print them."""
        return round(self._clock() + self.skew, 6)

    @property
    def steady(self) -> float:
        """Seconds by a clock that nobody sets."""
        return self._clock()

    def set_clock(self, forward: float) -> None:
        """Set the clock of the store forward by so many seconds, or back."""
        for job in self.jobs.values():  # a key that has expired does not come back
            if job.lock[1] <= self.now:
                job.lock = ("", 0.0)
            if job.dirty_until <= self.now:
                job.dirty_until = 0.0
        self.skew += forward
        self.set_back = self.set_back or forward < 0
        if self.watching and forward < 0:
            self.watching.set_back(self.now)

    def remember(self) -> Callable[[], None]:
        """A snapshot of all keys; answers how to go back to it."""
        jobs = {job_id: job.copy() for job_id, job in self.jobs.items()}
        due, keys, taken, finished = dict(self.due), dict(self.keys), dict(self.taken), dict(self.finished)
        ready = {lane: dict(offers) for lane, offers in self.ready.items()}
        turn, polled, pools, held = dict(self.turn), dict(self.polled), dict(self.pools), set(self.held)
        alive_at, grace_until, period = self.alive_at, self.grace_until, self.period
        outbox = list(self.outbox)

        def restore() -> None:
            self.jobs, self.due, self.keys, self.taken, self.finished = jobs, due, keys, taken, finished
            self.ready, self.turn, self.polled, self.pools, self.held = ready, turn, polled, pools, held
            self.alive_at, self.grace_until, self.period = alive_at, grace_until, period
            self.outbox = outbox

        return restore

    # ---- tasks/transport/lua -----------------------------------------------------------------------------------

    def take(
        self, queues: Sequence[str], caller: str, claimant: str, worker: str, event: str, *, leaves: bool = False
    ) -> Claimed | None:
        before, offer = self.taken.get(caller, ("", None))
        if before == claimant:
            return self._claim(offer, claimant, worker, event) if offer is not None else None
        self.polled[caller] = self.now
        for queue in queues:
            staying: set[Offer] = set()
            while len(staying) < 20 and (found := self._next_offer(queue, staying)):
                first, turn, lane = found
                if self._stays(first, worker):
                    staying.add(first)
                    continue
                del self.ready[lane][first]
                if claim := self._claim(first, claimant, worker, event):
                    self.turn[queue] = max(turn, self.turn.get(queue, 0.0))
                    self.taken[caller] = claimant, first
                    return claim
        if leaves:
            self.polled[caller] = -self.now
        self.taken[caller] = claimant, None
        return None

    def _next_offer(self, queue: str, staying: set[Offer]) -> tuple[Offer, float, str] | None:
        """The offer whose turn is next on this queue, its turn and its lane, among those whose pools have a slot."""
        lanes = [lane for lane in sorted(self.ready) if queue_of(lane) == queue]
        standing = [
            (*min(rest.items(), key=by_turn), lane)
            for lane in lanes
            if not (pool := pool_of(lane)) or self.has_slot(pool)
            if (rest := {offer: turn for offer, turn in self.ready[lane].items() if offer not in staying})
        ]
        return min(standing, key=lambda one: one[1], default=None)

    def _stays(self, offer: Offer, worker: str) -> bool:
        """It stands, and other hosts than that of ``worker`` are asked first."""
        job = self.jobs.get(offer.job)
        attempt = job.attempts.get(offer.group) if job else None
        if job is None or attempt is None or job.record.terminal or self._held(job.record):
            return False
        current = (attempt.epoch, attempt.nonce) == (offer.epoch, offer.nonce) and attempt.outcome is None
        first = attempt.avoid == worker.rpartition(":")[0] and 0 < attempt.avoid_until - self.now < 60
        return current and not attempt.claimant and first

    def has_slot(self, pool: str) -> bool:
        return sum(of == pool for of, _ in self.held) < self.pools.get(pool, 1)

    def _claim(self, offer: Offer, claimant: str, worker: str, event: str) -> Claimed | None:
        job = self.jobs.get(offer.job)
        attempt = job.attempts.get(offer.group) if job else None
        if job is None or job.record.terminal or attempt is None:
            return None
        if (attempt.epoch, attempt.nonce) != (offer.epoch, offer.nonce) or attempt.outcome is not None:
            return None
        if self._anothers(attempt, claimant):
            return None
        if not attempt.claimant and (self._held(job.record) or (attempt.pool and not self.has_slot(attempt.pool))):
            return None
        plan = job.plans.get(split_member(offer.group)[0])
        inputs = job.frozen.get(split_member(offer.group)[0])
        member = job.frozen.get(offer.group)
        if plan is None or (inputs is None and member is None):
            return None
        token = offer.held_by(claimant)
        claim = Claimed(token, plan, inputs or "{}", member or "{}", job.params)
        if attempt.claimant != claimant:
            now = self.now
            claimed = replace(attempt, claimant=claimant, worker=worker, claimed_at=now)
            job.attempts[offer.group] = replace(claimed, lease=now + self.lease_ttl, revision=job.record.revision)
            if attempt.pool:
                self.held.add((attempt.pool, offer))
            self._report(event, token, "claimed")
            self._due_earlier(offer.job, now)
            if self.watching:
                self.watching.claimed(token)
        if self.watching:
            self.watching.handed_out(token, claim.work_order)
        return claim

    def _anothers(self, attempt: AttemptRecord, claimant: str) -> bool:
        return bool(attempt.claimant) and attempt.claimant != claimant

    def _held(self, record: JobRecord) -> bool:
        return record.intent is not Intent.RUN or record.halted is not None

    def renew(self, token: Token, worker: str) -> RenewAnswer:
        job = self.jobs.get(token.job)
        attempt = job.attempts.get(token.group) if job is not None else None
        if job is None or job.record.terminal or attempt is None:
            return RenewAnswer.STALE
        if (attempt.epoch, attempt.nonce) != (token.epoch, token.nonce) or attempt.outcome is not None:
            return RenewAnswer.STALE
        if attempt.claimant and attempt.claimant != token.claimant:
            return RenewAnswer.STALE
        now = self.now
        if not attempt.claimant:
            attempt = replace(attempt, claimant=token.claimant, worker=worker, claimed_at=now)
            self._due_earlier(token.job, now)
            if attempt.pool:
                self.held.add((attempt.pool, Offer(token.job, token.group, token.epoch, token.nonce)))
        job.attempts[token.group] = replace(attempt, lease=now + self.lease_ttl)
        return RenewAnswer(attempt.instruction or "CONTINUE")

    def finish(self, token: Token, outcome: Outcome, event: str, caller: str) -> FinishAnswer:
        before, said = self.finished.get(caller, ("", FinishAnswer.STALE))
        if before == event:
            return FinishAnswer.DUPLICATE if said is FinishAnswer.APPLIED else said
        answer = self._finish(token, outcome, event)
        self.finished[caller] = event, answer
        return answer

    def finish_and_take(
        self,
        token: Token,
        outcome: Outcome,
        event: str,
        caller: str,
        queues: Sequence[str],
        claimant: str,
        worker: str,
        claim: str,
    ) -> tuple[FinishAnswer, Claimed | None]:
        return self.finish(token, outcome, event, caller), self.take(queues, caller, claimant, worker, claim)

    def _finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        job = self.jobs.get(token.job)
        if job is None:
            self._report(event, token, str(outcome.kind))
            return FinishAnswer.UNKNOWN_JOB
        attempt = job.attempts.get(token.group)
        if not job.record.terminal and attempt and self._holds(attempt, token) and attempt.outcome == outcome:
            return FinishAnswer.DUPLICATE
        if job.record.terminal or attempt is None or not self._holds(attempt, token) or attempt.outcome is not None:
            refused = "TERMINAL" if job.record.terminal else "STALE"
            self._report(event, token, str(outcome.kind), refused=refused)
            return FinishAnswer.STALE
        now = self.now
        job.attempts[token.group] = replace(attempt, outcome=outcome, outcome_at=now)
        self.held.discard((attempt.pool, Offer(token.job, token.group, token.epoch, token.nonce)))
        self._report(event, token, str(outcome.kind))
        self._due_earlier(token.job, now)
        if self.watching:
            self.watching.finished(token, outcome)
        return FinishAnswer.APPLIED

    def _holds(self, attempt: AttemptRecord, token: Token) -> bool:
        return (attempt.epoch, attempt.nonce, attempt.claimant) == (token.epoch, token.nonce, token.claimant)

    def _report(self, event: str, token: Token, kind: str, **more: str) -> None:
        version = "2" if token.claimant in self.newer else "1"
        fields = {"v": version, "id": event, "token": str(token), "kind": kind, "at": f"{self.now:.6f}"}
        self._stream.add({**fields, **more})

    # ---- coordinator/store/lua -----------------------------------------------------------------------------

    def submitted(self, key: str, fingerprint: str) -> str | None:
        """As ``Store.submitted``. Raises: KeyTaken."""
        standing, same = self.keys.get(key, (None, fingerprint))
        if standing is not None and same != fingerprint:
            raise KeyTaken(standing)
        return standing

    def submit(self, record: JobRecord, fingerprint: str = "f", reason: str = "") -> tuple[str, bool]:
        """As ``Store.submit``: the job that stands, and whether it is this one. Raises: KeyTaken, NotEnded."""
        if record.id in self.jobs:
            return record.id, True
        standing, same = self.keys.get(record.key, ("", fingerprint))
        if same != fingerprint:
            raise KeyTaken(standing)
        if standing:
            return standing, False
        if record.retry_of in self.jobs and not self._ended_badly(self.jobs[record.retry_of].record):
            raise NotEnded(self.jobs[record.retry_of].record.status)
        if record.key:
            self.keys[record.key] = (record.id, fingerprint)
        now = self.now
        plan = plan_of(record.spec)
        plans = record.group_plans(plan)
        self.jobs[record.id] = StoredJob(replace(record, submitted_at=now), plans=plans, params=dict(plan.params))
        if record.retry_of in self.jobs:
            told = {"kind": "RETRIED", "at": now, "by": record.submitted_by, "text": f"as job {record.id}"}
            self.jobs[record.retry_of].events.append(told)
        self.due[record.id] = now
        self._stream.add({"v": "1", "kind": "due", "job": record.id})
        if self.watching:
            self.watching.submitted(self.jobs[record.id].record)
        return record.id, True

    def _ended_badly(self, record: JobRecord) -> bool:
        return record.status in (Status.FAILED, Status.CANCELED, Status.STOPPED)

    def begin(self, job_id: str, owner: str) -> Begun:
        job, now = self.jobs.get(job_id), self.now
        if job is None:
            self.due.pop(job_id, None)
            return Begun(BeginAnswer.MISSING, now)
        holder, until = job.lock
        if self._outlived(until):
            until = 0.0
        held = holder if until > now else ""
        if held != owner:
            if held:
                job.dirty_until = now + 60.0
                if self.watching:
                    self.watching.met_busy(job_id)
                return Begun(BeginAnswer.BUSY, now)
            job.lock = (owner, now + self.lock_ttl)
        job.dirty_until = 0.0
        job.begun_at = now
        if self.watching:
            self.watching.begun(job_id)
        self.due[job_id] = round(now + self.lock_ttl, 6)
        return Begun(BeginAnswer.LOCKED, now, f"{self.due[job_id]:.6f}", self.alive_at, self.grace_until)

    def _outlived(self, until: float) -> bool:
        """Taken before the clock was set back."""
        return until - self.now > max(self.lock_ttl, 60.0)

    def end(self, job_id: str, owner: str, *, anyway: bool = False) -> EndAnswer:
        job, now = self.jobs.get(job_id), self.now
        if job is None or job.lock[0] != owner or job.lock[1] <= now:
            return EndAnswer.LOST
        if job.dirty_until > now:
            if not anyway:
                job.lock = (owner, now + self.lock_ttl)
                return EndAnswer.AGAIN
            self._due_earlier(job_id, now)
            job.dirty_until = 0.0
        job.lock = ("", 0.0)
        return EndAnswer.RELEASED

    def commit_id(self, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        return None if job is None else job.record.commit

    def attempts_of(self, job_id: str, groups: Iterable[str]) -> dict[str, AttemptRecord | None]:
        job = self.jobs.get(job_id)
        return {group: job.attempts.get(group) if job else None for group in groups}

    def load(self, job_id: str) -> JobState | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        return JobState(plan_of(job.record.spec), job.record, job.groups, job.collected, dict(job.attempts), job.frozen)

    def commit(self, decision: Decision, commit_id: str, due_seen: str, acks: Acks) -> CommitAnswer:
        job = self.jobs.get(decision.old.id)
        if job is None:
            return CommitAnswer.MISSING
        if job.record.commit == commit_id:
            return CommitAnswer.APPLIED
        if self._conflicts(job, decision):
            return CommitAnswer.CONFLICT
        if not all(self._stands(job, guard) for guard in decision.guards):
            return CommitAnswer.GUARDED
        before = job.copy()
        old, new = decision.old, decision.job
        changed = {name: getattr(new, name) for name in new.changed_fields(old)}
        job.record = replace(job.record, **{**changed, "commit": commit_id})
        for name, record in decision.groups.items():
            job.groups[name] = GroupRecord.from_json(record.to_json())
        job.frozen.update(decision.frozen)
        job.collected.update(decision.collected)
        for group in decision.dropped:
            job.attempts.pop(group, None)
        for group in decision.forgotten:
            job.groups.pop(group, None)
        for name in decision.unfrozen:
            job.frozen.pop(name, None)
        for fork in decision.uncollected:
            job.collected.pop(fork, None)
        for group, attempt in decision.offered.items():
            job.attempts[group] = attempt
        for group, (epoch, nonce, instruction) in decision.instructions.items():
            told = job.attempts.get(group)
            if told and (told.epoch, told.nonce) == (epoch, nonce) and told.outcome is None:
                job.attempts[group] = replace(told, instruction=instruction)
        for offer, lane in decision.withdrawn.items():
            self.ready.get(lane, {}).pop(offer, None)
            job.turns.pop(lane, None)
        self._add_offers(job, decision.offers)
        job.events.extend(decision.events)
        self.outbox += decision.notices
        job.decided_at = float(due_seen) - self.lock_ttl
        self._acked(job, acks)
        self._set_due(old.id, decision.due, due_seen)
        if self.watching:
            self.watching.committed(before, job, decision)
            self.watching.due_set(old.id)
        return CommitAnswer.APPLIED

    def _conflicts(self, job: StoredJob, decision: Decision) -> bool:
        return job.record.commit != decision.old.commit

    def _stands(self, job: StoredJob, guard: Guard) -> bool:
        attempt, now = job.attempts.get(guard.group), self.now
        if attempt is None or (attempt.epoch, attempt.nonce) != (guard.epoch, guard.nonce) or attempt.outcome:
            return False
        if guard.kind == "unclaimed":
            return not attempt.claimant
        holds = now <= attempt.lease <= now + self.lease_ttl + 1
        return not holds and now > self.grace_until and 0 <= now - self.alive_at <= 3 * self.period

    def job(self, job_id: str) -> JobRecord | None:
        job = self.jobs.get(job_id)
        return None if job is None else job.record

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
        job = self.jobs.get(old.id)
        if job is None:
            return CommitAnswer.MISSING
        if job.commanded == command_id:
            return CommitAnswer.APPLIED
        if job.record.commit != old.commit:
            return CommitAnswer.CONFLICT
        before, now = job.record, self.now
        asked = {name: getattr(commanded, name) for name in commanded.changed_fields(old)}
        if "intent" in asked:
            asked["intent_at"] = now
        job.record = replace(before, **{**asked, "commit": command_id})
        job.plans.update(plans or {})
        if params is not None:
            job.params = dict(params)
        job.commanded = command_id
        job.events.append({**event, "at": now})
        self.due[old.id] = min(now, self.due.get(old.id, now))
        self._stream.add({"v": "1", "kind": "due", "job": old.id})
        if self.watching:
            self.watching.commanded(before, job.record, event)
        return CommitAnswer.APPLIED

    def _add_offers(self, job: StoredJob, offers: Mapping[Offer, str]) -> None:
        last: dict[str, float] = {}
        step = {"high": 1, "low": 16}.get(job.record.priority, 4)
        for offer, lane in offers.items():
            standing, queue, pool = self.ready.setdefault(lane, {}), queue_of(lane), pool_of(lane)
            if lane not in last:
                taken = self.turn.get(queue, 0.0)
                next_turn = taken if pool else min(standing.values(), default=taken)
                last[lane] = max(next_turn, job.turns.get(lane, 0.0))
            turn = last[lane]
            if offer not in standing:
                standing[offer] = last[lane] = job.turns[lane] = turn + step
                self.notify(queue)

    def acknowledge(
        self, job_id: str, due: float | None, due_seen: str, acks: Acks, offers: Mapping[Offer, str] = NO_OFFERS
    ) -> None:
        self._acked(self.jobs[job_id], acks)
        self._add_offers(self.jobs[job_id], offers)
        if self.jobs[job_id].record.terminal if due is None else job_id in self.due:
            self._set_due(job_id, due, due_seen)
        if self.watching:
            self.watching.due_set(job_id)

    def _acked(self, job: StoredJob, acks: Acks) -> None:
        acked = self._stream.ack(acks.ids)
        job.events.extend(json.loads(acks.refused[entry]) for entry in acked if entry in acks.refused)
        self._stream.count(acks.counts.items())

    def _set_due(self, job_id: str, due: float | None, due_seen: str) -> None:
        """Later only if it still is what was set when the pass began, and its term has not run out; earlier always."""
        if due is None:
            self.due.pop(job_id, None)
            return
        due, now = round(due, 6), self.now
        if f"{self.due.get(job_id, -1.0):.6f}" == due_seen and now < float(due_seen):
            self.due[job_id] = due
        else:
            self.due[job_id] = min(due, self.due.get(job_id, due))

    def _due_earlier(self, job_id: str, at: float) -> None:
        if job_id in self.due:
            self.due[job_id] = min(self.due[job_id], at)

    def halt(
        self,
        job_id: str,
        reason: Reason,
        commit_id: str,
        now: float,
        tell: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.record.terminal:
            return
        if self.watching:
            self.watching.halted(job, reason)
        paused_at = job.record.paused_at or now
        halted = replace(job.record, halted=reason, status=Status.HALTED, paused_at=paused_at)
        decision = Decision(halted, job.record)
        tell(decision)
        self.outbox += decision.notices
        if job.record.status is not Status.HALTED:
            job.events.append({"kind": Status.HALTED, "at": now, "code": reason.code, "text": reason.text})
        job.record = replace(decision.job, commit=commit_id)
        self._set_due(job_id, now + HALTED_LOOK, "")

    def tick(self, period: float, lease_ttl: float) -> tuple[float, float]:
        now = self.now
        gap = now - self.alive_at
        if gap > 3 * period or gap < 0:
            self.due = {job: min(at, now) for job, at in self.due.items()}
            self.grace_until = now + lease_ttl
        self.alive_at, self.period = now, period
        return now, gap

    def due_by(self, now: float, limit: int) -> list[str]:
        found = sorted((at, job) for job, at in self.due.items() if at <= now)
        return [job for _, job in found[:limit]]

    def set_pool(self, name: str, slots: int) -> None:
        self.pools[name] = slots

    def free_slots(self) -> None:
        for pool, offer in list(self.held):
            job = self.jobs.get(offer.job)
            attempt = job.attempts.get(offer.group) if job and not job.record.terminal else None
            same = attempt is not None and (attempt.epoch, attempt.nonce) == (offer.epoch, offer.nonce)
            if attempt is None or not same or attempt.outcome is not None or not attempt.claimant:
                self.held.discard((pool, offer))

    def wake_ups(
        self, lanes: Iterable[str], listening: Mapping[str, Sequence[RunnerStatus]], waiting: Callable[[str], int]
    ) -> dict[str, int]:
        """``waiting``: how many wake-ups lie in a queue of the broker."""
        wanted: dict[str, int] = {}
        for lane in lanes:
            pool, standing = pool_of(lane), len(self.ready.get(lane, ()))
            room = self.pools.get(pool, 1) - sum(of == pool for of, _ in self.held) if pool else standing
            wanted[queue_of(lane)] = wanted.get(queue_of(lane), 0) + min(standing, max(0, room))
        idle = {one.id: one for there in listening.values() for one in there if self._idle(one)}

        def choose(queue: str) -> bool:
            """An idle runner of the queue has its wake-up: of those on the fewest queues."""
            there = [(len(one.queues), one.id) for one in idle.values() if queue in one.queues]
            return bool(there) and bool(idle.pop(min(there)[1]))

        for queue in sorted({*wanted, *listening}):
            for _ in range(waiting(queue)):
                choose(queue)
        sent = {
            queue: 1 for queue, count in wanted.items() if count and not listening.get(queue) and not waiting(queue)
        }
        more = {queue: count - waiting(queue) for queue, count in sorted(wanted.items()) if listening.get(queue)}
        while more := {queue: left - 1 for queue, left in more.items() if left > 0 and choose(queue)}:
            for queue in more:
                sent[queue] = sent.get(queue, 0) + 1
        if self.watching:
            self.watching.rang(sent, listening)
        return sent

    def roll_back(self, lane: str, standing: Mapping[Offer, float]) -> None:
        """The ready set alone is as it once was."""
        self.ready[lane] = dict(standing)

    def spoil(self, lane: str, offers: Sequence[Offer]) -> None:
        """Put these offers into a ready set; none: the ready set is lost."""
        if not offers:
            self.ready.pop(lane, None)
        for offer in offers:
            self.ready.setdefault(lane, {})[offer] = 0.0

    def _idle(self, runner: RunnerStatus) -> bool:
        return idle_runner(runner, self.polled.get(runner.id, 0.0), self.now)


def by_turn(standing: tuple[Offer, float]) -> tuple[float, str]:
    """As Redis sorts: what has the same turn by its bytes."""
    offer, turn = standing
    return turn, str(offer)
