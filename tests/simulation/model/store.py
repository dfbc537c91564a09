"""The reference model of the store as the simulator needs it: watched, with a clock that is set,
and with faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.simulation.model.stored import StoredJob, Watching
from unstuck.coordinator.model.decision import Acks, Decision
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.store.answers import BeginAnswer, Begun, CommitAnswer
from unstuck.coordinator.store.job_store import NO_OFFERS
from unstuck.in_process.store import ReferenceStore
from unstuck.in_process.stored import Reports
from unstuck.tasks.protocol.keys import queue_of
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.transport.lease import Claim, FinishAnswer


class ModelStore(ReferenceStore):
    """The model, which tells who watches of every write."""

    stored = StoredJob
    jobs: dict[str, StoredJob]  # type: ignore[assignment]

    def __init__(
        self, clock: Callable[[], float], stream: Reports, *, lock_term: float, lease_ttl: float
    ) -> None:
        super().__init__(clock, stream, lock_term=lock_term, lease_ttl=lease_ttl)
        self.notify: Callable[[str], None] = lambda queue: (
            None
        )  # wakes who waits for an offer on the queue
        self.watching: Watching | None = None
        self.skew = 0.0  # of the store's clock against that of the stage
        self.set_back = False  # it was set back once
        self.newer: set[str] = (
            set()
        )  # claimants of a newer release, whose reports only such a one can read

    @property
    def now(self) -> float:
        """As the model, by a clock that may be wrong."""
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
        due, keys, taken, finished = (
            dict(self.due),
            dict(self.keys),
            dict(self.taken),
            dict(self.finished),
        )
        ready = {lane: dict(offers) for lane, offers in self.ready.items()}
        turn, polled, pools, held = (
            dict(self.turn),
            dict(self.polled),
            dict(self.pools),
            set(self.held),
        )
        alive_at, grace, period = self.alive_at, (self.grace_since, self.grace_until), self.period
        outbox = list(self.outbox)

        def restore() -> None:
            self.jobs, self.due, self.keys, self.taken, self.finished = (
                jobs,
                due,
                keys,
                taken,
                finished,
            )
            self.ready, self.turn, self.polled, self.pools, self.held = (
                ready,
                turn,
                polled,
                pools,
                held,
            )
            self.alive_at, (self.grace_since, self.grace_until), self.period = (
                alive_at,
                grace,
                period,
            )
            self.outbox = outbox

        return restore

    def roll_back(self, lane: str, standing: Mapping[Offer, float]) -> None:
        """The ready set alone is as it once was."""
        self.ready[lane] = dict(standing)

    def spoil(self, lane: str, offers: Sequence[Offer]) -> None:
        """Put these offers into a ready set; none: the ready set is lost."""
        if not offers:
            self.ready.pop(lane, None)
        for offer in offers:
            self.ready.setdefault(lane, {})[offer] = 0.0

    # ---- the scripts, watched
    # ------------------------------------------------------------------------

    def _claim(self, offer: Offer, claimant: str, worker: str, event: str) -> Claim | None:
        job = self.jobs.get(offer.job)
        before = job.attempts.get(offer.group) if job else None
        claim = super()._claim(offer, claimant, worker, event)
        if claim is not None and self.watching:
            if before is None or before.claimant != claimant:
                self.watching.claimed(claim.token)
            self.watching.handed_out(claim.token, claim.work_order)
        return claim

    def _finish(self, token: Token, outcome: Outcome, event: str) -> FinishAnswer:
        answer = super()._finish(token, outcome, event)
        if answer is FinishAnswer.APPLIED and self.watching:
            self.watching.finished(token, outcome)
        return answer

    def _report(self, event: str, token: Token, kind: str, **more: str) -> None:
        newer = {"v": "2"} if token.claimant in self.newer else {}
        super()._report(event, token, kind, **newer, **more)

    def submit(
        self, record: JobRecord, fingerprint: str = "f", reason: str = ""
    ) -> tuple[str, bool]:
        known = record.id in self.jobs
        job_id, new = super().submit(record, fingerprint, reason)
        if new and not known and self.watching:
            self.watching.submitted(self.jobs[job_id].record)
        return job_id, new

    def begin(self, job_id: str, owner: str) -> Begun:
        begun = super().begin(job_id, owner)
        if begun.answer is BeginAnswer.LOCKED:
            self.jobs[job_id].begun_at = begun.now
        if self.watching and begun.answer is BeginAnswer.BUSY:
            self.watching.met_busy(job_id)
        elif self.watching and begun.answer is BeginAnswer.LOCKED:
            self.watching.begun(job_id)
        return begun

    def commit(self, decision: Decision, commit_id: str, due_seen: str, acks: Acks) -> CommitAnswer:
        job = self.jobs.get(decision.old.id)
        before = None if job is None or job.record.commit == commit_id else job.copy()
        answer = super().commit(decision, commit_id, due_seen, acks)
        if job is None or before is None or answer is not CommitAnswer.APPLIED:
            return answer
        job.decided_at = float(due_seen) - self.lock_term
        if self.watching:
            self.watching.committed(before, job, decision)
            self.watching.due_set(job.record.id)
        return answer

    def command(
        self,
        commanded: JobRecord,
        old: JobRecord,
        command_id: str,
        event: Mapping[str, Any],
        **more: Any,
    ) -> CommitAnswer:
        job = self.jobs.get(old.id)
        before = None if job is None or job.commanded == command_id else job.record
        answer = super().command(commanded, old, command_id, event, **more)
        if before is not None and answer is CommitAnswer.APPLIED and self.watching:
            self.watching.commanded(before, self.jobs[old.id].record, event)
        return answer

    def _add_offers(self, job: Any, offers: Mapping[Offer, str]) -> None:
        new = [lane for offer, lane in offers.items() if offer not in self.ready.get(lane, {})]
        super()._add_offers(job, offers)
        for lane in new:
            self.notify(queue_of(lane))

    def acknowledge(
        self,
        job_id: str,
        due: float | None,
        due_seen: str,
        acks: Acks,
        offers: Mapping[Offer, str] = NO_OFFERS,
    ) -> None:
        super().acknowledge(job_id, due, due_seen, acks, offers)
        if self.watching:
            self.watching.due_set(job_id)

    def halt(
        self,
        job_id: str,
        reason: Reason,
        commit_id: str,
        now: float,
        tell: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        job = self.jobs.get(job_id)
        if job is not None and not job.record.terminal and self.watching:
            self.watching.halted(job, reason)
        super().halt(job_id, reason, commit_id, now, tell)

    def wake_ups(
        self,
        lanes: Iterable[str],
        listening: Mapping[str, Sequence[RunnerInfo]],
        waiting: Callable[[str], int],
    ) -> dict[str, int]:
        sent = super().wake_ups(lanes, listening, waiting)
        if self.watching:
            self.watching.rang(sent, listening)
        return sent
