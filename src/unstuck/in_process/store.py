"""The reference model of the store: the scripts of worker and coordinator on Python values.

Every method is one script and happens at once. It must hold no logic of its own: the simulator runs
the same calls against this and against the scripts on a real Valkey, and compares every answer and
every record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from unstuck.coordinator.model.decision import Acks, CommitGuard, Decision
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import (
    BeginAnswer,
    Begun,
    CommitAnswer,
    EndAnswer,
    KeyTaken,
    NotEnded,
)
from unstuck.coordinator.store.job_store import HALTED_LOOK, NO_OFFERS
from unstuck.coordinator.store.runner_wake_ups import idle_runner
from unstuck.in_process.stored import Reports, StoredJob
from unstuck.in_process.worker_scripts import WorkerScripts
from unstuck.tasks.protocol.keys import pool_of, queue_of
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.token import Offer


class ReferenceStore(WorkerScripts):
    """Jobs with their keys, the sweep's heartbeat, the outbox of notices."""

    stored: type[StoredJob] = StoredJob

    def __init__(
        self, clock: Callable[[], float], stream: Reports, *, lock_term: float, lease_ttl: float
    ) -> None:
        super().__init__(clock, stream, lock_term=lock_term, lease_ttl=lease_ttl)
        # Submit key → job, and the fingerprint of its spec.
        self.keys: dict[str, tuple[str, str]] = {}
        self.alive_at = 0.0
        self.grace_since = self.grace_until = 0.0
        self.period = 1.0
        self.outbox: list[str] = []

    def submitted(self, key: str, fingerprint: str) -> str | None:
        """Return like ``Store.submitted``. Raises: KeyTaken."""
        existing, same = self.keys.get(key, (None, fingerprint))
        if existing is not None and same != fingerprint:
            raise KeyTaken(existing)
        return existing

    def submit(
        self, record: JobRecord, fingerprint: str = "f", reason: str = ""
    ) -> tuple[str, bool]:
        """Store like ``Store.submit``: return the job, and whether it is new.

        Raises: KeyTaken, NotEnded.
        """
        if record.id in self.jobs:
            return record.id, True
        existing, same = self.keys.get(record.key, ("", fingerprint))
        if same != fingerprint:
            raise KeyTaken(existing)
        if existing:
            return existing, False
        if record.retry_of in self.jobs and not self._ended_badly(
            self.jobs[record.retry_of].record
        ):
            raise NotEnded(self.jobs[record.retry_of].record.status)
        if record.key:
            self.keys[record.key] = (record.id, fingerprint)
        now = self.now
        plan = plan_of(record.spec, record.texts)
        plans = record.group_plans(plan)
        self.jobs[record.id] = self.stored(
            replace(record, submitted_at=now), plans=plans, params=dict(plan.params)
        )
        if record.retry_of in self.jobs:
            event = {
                "kind": "RETRIED",
                "at": now,
                "by": record.submitted_by,
                "text": f"as job {record.id}",
            }
            self.jobs[record.retry_of].events.append(event)
        self.due[record.id] = now
        self._stream.add({"v": "1", "kind": "due", "job": record.id})
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
                return Begun(BeginAnswer.BUSY, now)
            job.lock = (owner, now + self.lock_term)
        job.dirty_until = 0.0
        self.due[job_id] = round(now + self.lock_term, 6)
        return Begun(
            BeginAnswer.LOCKED, now, f"{self.due[job_id]:.6f}", self.alive_at, self.grace_until
        )

    def _outlived(self, until: float) -> bool:
        """Return whether the lock was taken before the clock was set back."""
        return until - self.now > max(self.lock_term, 60.0)

    def end(self, job_id: str, owner: str, *, anyway: bool = False) -> EndAnswer:
        job, now = self.jobs.get(job_id), self.now
        if job is None or job.lock[0] != owner or job.lock[1] <= now:
            return EndAnswer.LOST
        if job.dirty_until > now:
            if not anyway:
                job.lock = (owner, now + self.lock_term)
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
        return JobState(
            plan_of(job.record.spec, job.record.texts),
            job.record,
            job.groups,
            job.collected,
            dict(job.attempts),
            job.frozen,
        )

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
        old, new = decision.old, decision.job
        changed = {name: getattr(new, name) for name in new.changed_fields(old)}
        job.record = replace(job.record, **{**changed, "commit": commit_id})
        self._write_groups(job, decision)
        self._write_attempts(job, decision)
        for offer, lane in decision.withdrawn.items():
            self.ready.get(lane, {}).pop(offer, None)
            job.turns.pop(lane, None)
        self._add_offers(job, decision.offers)
        job.events.extend(decision.events)
        self.outbox += decision.notices
        self._acked(job, acks)
        self._set_due(old.id, decision.due, due_seen)
        return CommitAnswer.APPLIED

    def _write_groups(self, job: StoredJob, decision: Decision) -> None:
        for name, record in decision.groups.items():
            job.groups[name] = GroupRecord.from_json(record.to_json())
        job.frozen.update(decision.frozen)
        job.collected.update(decision.collected)
        for group in decision.forgotten:
            job.groups.pop(group, None)
        for name in decision.unfrozen:
            job.frozen.pop(name, None)
        for fork in decision.uncollected:
            job.collected.pop(fork, None)

    def _write_attempts(self, job: StoredJob, decision: Decision) -> None:
        for group in decision.dropped:
            job.attempts.pop(group, None)
        for group, attempt in decision.offered.items():
            job.attempts[group] = attempt
        for group, (epoch, nonce, instruction) in decision.instructions.items():
            current = job.attempts.get(group)
            if (
                current
                and (current.epoch, current.nonce) == (epoch, nonce)
                and current.outcome is None
            ):
                job.attempts[group] = replace(current, instruction=instruction)

    def _conflicts(self, job: StoredJob, decision: Decision) -> bool:
        return job.record.commit != decision.old.commit

    def _stands(self, job: StoredJob, guard: CommitGuard) -> bool:
        attempt, now = job.attempts.get(guard.group), self.now
        if (
            attempt is None
            or (attempt.epoch, attempt.nonce) != (guard.epoch, guard.nonce)
            or attempt.outcome
        ):
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
        changes = {name: getattr(commanded, name) for name in commanded.changed_fields(old)}
        if "intent" in changes:
            changes["intent_at"] = now
        job.record = replace(before, **{**changes, "commit": command_id})
        job.plans.update(plans or {})
        if params is not None:
            job.params = dict(params)
        job.commanded = command_id
        job.events.append({**event, "at": now})
        self.due[old.id] = min(now, self.due.get(old.id, now))
        self._stream.add({"v": "1", "kind": "due", "job": old.id})
        return CommitAnswer.APPLIED

    def _add_offers(self, job: StoredJob, offers: Mapping[Offer, str]) -> None:
        last: dict[str, float] = {}
        step = {"high": 1, "low": 16}.get(job.record.priority, 4)
        for offer, lane in offers.items():
            ready, queue, pool = self.ready.setdefault(lane, {}), queue_of(lane), pool_of(lane)
            if lane not in last:
                taken = self.turn.get(queue, 0.0)
                next_turn = taken if pool else min(ready.values(), default=taken)
                last[lane] = max(next_turn, job.turns.get(lane, 0.0))
            turn = last[lane]
            if offer not in ready:
                ready[offer] = last[lane] = job.turns[lane] = turn + step

    def acknowledge(
        self,
        job_id: str,
        due: float | None,
        due_seen: str,
        acks: Acks,
        offers: Mapping[Offer, str] = NO_OFFERS,
    ) -> None:
        self._acked(self.jobs[job_id], acks)
        self._add_offers(self.jobs[job_id], offers)
        if self.jobs[job_id].record.terminal if due is None else job_id in self.due:
            self._set_due(job_id, due, due_seen)

    def _acked(self, job: StoredJob, acks: Acks) -> None:
        acked = self._stream.ack(acks.ids)
        job.events.extend(
            json.loads(acks.refused[entry]) for entry in acked if entry in acks.refused
        )
        self._stream.count(acks.counts.items())

    def _set_due(self, job_id: str, due: float | None, due_seen: str) -> None:
        """Set the due time: earlier always, later only for a pass that set it within its term."""
        if due is None:
            self.due.pop(job_id, None)
            return
        due, now = round(due, 6), self.now
        if f"{self.due.get(job_id, -1.0):.6f}" == due_seen and now < float(due_seen):
            self.due[job_id] = due
        else:
            self.due[job_id] = min(due, self.due.get(job_id, due))

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
        paused_at = job.record.paused_at or now
        halted = replace(job.record, halted=reason, status=Status.HALTED, paused_at=paused_at)
        decision = Decision(halted, job.record)
        tell(decision)
        self.outbox += decision.notices
        if job.record.status is not Status.HALTED:
            job.events.append(
                {"kind": Status.HALTED, "at": now, "code": reason.code, "text": reason.text}
            )
        job.record = replace(decision.job, commit=commit_id)
        self._set_due(job_id, now + HALTED_LOOK, "")

    def tick(self, period: float, lease_ttl: float) -> tuple[float, float]:
        now = self.now
        gap = now - self.alive_at
        if gap > 3 * period or gap < 0:
            self.due = {job: min(at, now) for job, at in self.due.items()}
            if now < self.grace_since or now > self.grace_until + lease_ttl:
                self.grace_since = now
            self.grace_until = min(now, self.grace_since + 2 * lease_ttl) + lease_ttl
        self.alive_at, self.period = now, period
        return now, gap

    def due_by(self, now: float, limit: int) -> list[str]:
        due_jobs = sorted((at, job) for job, at in self.due.items() if at <= now)
        return [job for _, job in due_jobs[:limit]]

    def set_pool(self, name: str, slots: int) -> None:
        self.pools[name] = slots

    def free_slots(self) -> None:
        for pool, offer in list(self.held):
            job = self.jobs.get(offer.job)
            attempt = job.attempts.get(offer.group) if job and not job.record.terminal else None
            same = attempt is not None and (attempt.epoch, attempt.nonce) == (
                offer.epoch,
                offer.nonce,
            )
            if attempt is None or not same or attempt.outcome is not None or not attempt.claimant:
                self.held.discard((pool, offer))

    def wake_ups(
        self,
        lanes: Iterable[str],
        listening: Mapping[str, Sequence[RunnerInfo]],
        waiting: Callable[[str], int],
    ) -> dict[str, int]:
        """Return wake-ups. ``waiting``: how many wake-ups are in a queue of the broker."""
        needed = Counter[str]()
        for lane in lanes:
            needed[queue_of(lane)] += self._takable(lane)
        idle = _IdleRunners(filter(self._idle, chain.from_iterable(listening.values())))
        for queue in sorted({*needed, *listening}):
            for _ in range(waiting(queue)):
                idle.choose(queue)
        heard = {queue for queue in needed if listening.get(queue)}
        missing = {queue: count - waiting(queue) for queue, count in needed.items()}
        # A queue without listeners gets a wake-up for its first one.
        first = (queue for queue, count in needed.items() if count and not waiting(queue))
        sent = Counter(queue for queue in first if queue not in heard)
        return dict(sent + idle.share({queue: missing[queue] for queue in sorted(heard)}))

    def _takable(self, lane: str) -> int:
        """Return how many offers of a lane may be taken: its pool may have fewer free slots."""
        pool, offers = pool_of(lane), len(self.ready.get(lane, ()))
        if not pool:
            return offers
        used = sum(of == pool for of, _ in self.held)
        return min(offers, max(0, self.pools.get(pool, 1) - used))

    def _idle(self, runner: RunnerInfo) -> bool:
        return idle_runner(runner, self.polled.get(runner.id, 0.0), self.now)


class _IdleRunners:
    """Idle runners, each of which is chosen once."""

    def __init__(self, runners: Iterable[RunnerInfo]) -> None:
        self._runners = {runner.id: runner for runner in runners}

    def choose(self, queue: str) -> bool:
        """Choose a runner with the fewest queues. Return whether one listens on ``queue``."""
        candidates = [
            (len(runner.queues), runner.id)
            for runner in self._runners.values()
            if queue in runner.queues
        ]
        if candidates:
            del self._runners[min(candidates)[1]]
        return bool(candidates)

    def share(self, missing: Mapping[str, int]) -> Counter[str]:
        """Return the wake-ups of each queue, at most those ``missing``. Queues take turns."""
        left, sent = dict(missing), Counter[str]()
        while left := {
            queue: count - 1 for queue, count in left.items() if count > 0 and self.choose(queue)
        }:
            sent.update([*left])
        return sent
