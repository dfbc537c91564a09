"""The scripts of the workers on Python values: take, renew, finish."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from unstuck.coordinator.model.records import AttemptRecord, JobRecord
from unstuck.coordinator.model.status import Intent
from unstuck.in_process.stored import Reports, StoredJob
from unstuck.tasks.protocol.keys import pool_of, queue_of
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, Token, split_member
from unstuck.tasks.transport.lease import Claim, FinishAnswer, RenewAnswer


class WorkerScripts:
    """All jobs, the due index and the offers. Each method is one script, and atomic."""

    def __init__(
        self, clock: Callable[[], float], stream: Reports, *, lock_term: float, lease_ttl: float
    ) -> None:
        """Create the scripts. ``clock``: seconds since the epoch. Terms are in seconds.

        The terms are in seconds.
        """
        self._clock = clock
        self._stream = stream
        self.lock_term = lock_term
        self.lease_ttl = lease_ttl
        self.jobs: dict[str, StoredJob] = {}
        self.due: dict[str, float] = {}
        self.ready: dict[str, dict[Offer, float]] = {}  # lane → offers with their turns
        self.pools: dict[str, int] = {}  # pool → its slots, if set
        self.held: set[tuple[str, Offer]] = set()  # the attempts that hold a slot of a pool
        self.turn: dict[str, float] = {}  # queue → the turn that was taken last
        self.polled: dict[str, float] = {}
        # Caller → the claimant and the offer of its last take.
        self.taken: dict[str, tuple[str, Offer | None]] = {}
        # Caller → the event and the answer of its last finish.
        self.finished: dict[str, tuple[str, FinishAnswer]] = {}

    @property
    def now(self) -> float:
        """Return seconds with the precision of microseconds, as the scripts print them."""
        return round(self._clock(), 6)

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
        before, offer = self.taken.get(caller, ("", None))
        if before == claimant:
            return self._claim(offer, claimant, worker, event) if offer is not None else None
        self.polled[caller] = self.now
        for queue in queues:
            staying: set[Offer] = set()
            while len(staying) < 20 and (next_offer := self._next_offer(queue, staying)):
                first, turn, lane = next_offer
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
        """Return the next offer of a queue whose pool has a free slot, with its turn and lane."""
        lanes = [lane for lane in sorted(self.ready) if queue_of(lane) == queue]
        candidates = [
            (*min(rest.items(), key=by_turn), lane)
            for lane in lanes
            if not (pool := pool_of(lane)) or self.has_slot(pool)
            if (
                rest := {
                    offer: turn for offer, turn in self.ready[lane].items() if offer not in staying
                }
            )
        ]
        return min(candidates, key=lambda candidate: candidate[1], default=None)

    def _stays(self, offer: Offer, worker: str) -> bool:
        """Return whether the offer stays, because hosts other than ``worker``'s come first."""
        job = self.jobs.get(offer.job)
        attempt = job.attempts.get(offer.group) if job else None
        if job is None or attempt is None or job.record.terminal or self._held(job.record):
            return False
        current = (attempt.epoch, attempt.nonce) == (
            offer.epoch,
            offer.nonce,
        ) and attempt.outcome is None
        first = (
            attempt.avoid == worker.rpartition(":")[0] and 0 < attempt.avoid_until - self.now < 60
        )
        return current and not attempt.claimant and first

    def has_slot(self, pool: str) -> bool:
        return sum(of == pool for of, _ in self.held) < self.pools.get(pool, 1)

    def _claim(self, offer: Offer, claimant: str, worker: str, event: str) -> Claim | None:
        job = self.jobs.get(offer.job)
        attempt = job.attempts.get(offer.group) if job else None
        if job is None or job.record.terminal or attempt is None:
            return None
        if not self._claimable(job, attempt, offer, claimant):
            return None
        token = offer.held_by(claimant)
        claim = self._claim_of(job, token)
        if claim is None:
            return None
        if attempt.claimant != claimant:
            now = self.now
            claimed = replace(attempt, claimant=claimant, worker=worker, claimed_at=now)
            job.attempts[offer.group] = replace(
                claimed, lease=now + self.lease_ttl, revision=job.record.revision
            )
            if attempt.pool:
                self.held.add((attempt.pool, offer))
            self._report(event, token, "claimed")
            self._due_earlier(offer.job, now)
        return claim

    def _claimable(
        self, job: StoredJob, attempt: AttemptRecord, offer: Offer, claimant: str
    ) -> bool:
        """Return whether ``attempt`` is the one offered, not ended, and free for ``claimant``."""
        if (attempt.epoch, attempt.nonce) != (offer.epoch, offer.nonce):
            return False
        if attempt.outcome is not None or self._anothers(attempt, claimant):
            return False
        if attempt.claimant:
            return True
        return not self._held(job.record) and (not attempt.pool or self.has_slot(attempt.pool))

    def _claim_of(self, job: StoredJob, token: Token) -> Claim | None:
        """Return the claim with what its attempt runs; None if a record that it needs is gone."""
        group = split_member(token.group)[0]
        plan, inputs = job.plans.get(group), job.frozen.get(group)
        member = job.frozen.get(token.group)
        if plan is None or (inputs is None and member is None):
            return None
        texts = [part for text in job.record.texts.items() for part in text]
        return Claim(token, (plan, inputs or "{}", member or "{}", json.dumps(job.params), *texts))

    def _anothers(self, attempt: AttemptRecord, claimant: str) -> bool:
        return bool(attempt.claimant) and attempt.claimant != claimant

    def _held(self, record: JobRecord) -> bool:
        return record.intent is not Intent.RUN or record.halted is not None

    def renew(self, token: Token, worker: str) -> RenewAnswer:
        job = self.jobs.get(token.job)
        attempt = job.attempts.get(token.group) if job is not None else None
        if job is None or job.record.terminal or attempt is None:
            return RenewAnswer.STALE
        if (attempt.epoch, attempt.nonce) != (
            token.epoch,
            token.nonce,
        ) or attempt.outcome is not None:
            return RenewAnswer.STALE
        if attempt.claimant and attempt.claimant != token.claimant:
            return RenewAnswer.STALE
        now = self.now
        if not attempt.claimant:
            attempt = replace(attempt, claimant=token.claimant, worker=worker, claimed_at=now)
            self._due_earlier(token.job, now)
            if attempt.pool:
                self.held.add(
                    (attempt.pool, Offer(token.job, token.group, token.epoch, token.nonce))
                )
        job.attempts[token.group] = replace(attempt, lease=now + self.lease_ttl)
        return RenewAnswer(attempt.instruction or "CONTINUE")

    def finish(self, token: Token, outcome: Outcome, event: str, caller: str) -> FinishAnswer:
        before, recorded = self.finished.get(caller, ("", FinishAnswer.STALE))
        if before == event:
            return FinishAnswer.DUPLICATE if recorded is FinishAnswer.APPLIED else recorded
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
    ) -> tuple[FinishAnswer, Claim | None]:
        return self.finish(token, outcome, event, caller), self.take(
            queues, caller, claimant, worker, claim
        )

    def _finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        job = self.jobs.get(token.job)
        if job is None:
            self._report(event, token, str(outcome.kind))
            return FinishAnswer.UNKNOWN_JOB
        attempt = job.attempts.get(token.group)
        if (
            not job.record.terminal
            and attempt
            and self._holds(attempt, token)
            and attempt.outcome == outcome
        ):
            return FinishAnswer.DUPLICATE
        if (
            job.record.terminal
            or attempt is None
            or not self._holds(attempt, token)
            or attempt.outcome is not None
        ):
            refused = "TERMINAL" if job.record.terminal else "STALE"
            self._report(event, token, str(outcome.kind), refused=refused)
            return FinishAnswer.STALE
        now = self.now
        job.attempts[token.group] = replace(attempt, outcome=outcome, outcome_at=now)
        self.held.discard((attempt.pool, Offer(token.job, token.group, token.epoch, token.nonce)))
        self._report(event, token, str(outcome.kind))
        self._due_earlier(token.job, now)
        return FinishAnswer.APPLIED

    def _holds(self, attempt: AttemptRecord, token: Token) -> bool:
        return (attempt.epoch, attempt.nonce, attempt.claimant) == (
            token.epoch,
            token.nonce,
            token.claimant,
        )

    def _report(self, event: str, token: Token, kind: str, **more: str) -> None:
        fields = {"v": "1", "id": event, "token": str(token), "kind": kind, "at": f"{self.now:.6f}"}
        self._stream.add({**fields, **more})

    def _due_earlier(self, job_id: str, at: float) -> None:
        if job_id in self.due:
            self.due[job_id] = min(self.due[job_id], at)


def by_turn(entry: tuple[Offer, float]) -> tuple[float, str]:
    """Sort like Redis: by turn, then by bytes."""
    offer, turn = entry
    return turn, str(offer)
