"""Act: one pass over one job. Lock, load, decide, commit; then, unlocked, send hints and publish.

Thin on purpose: what should happen is decided in ``decide``, how it is stored in ``store``. The lock saves work and
proves nothing: without it every commit is still a compare-and-set.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.decide.receipts import Delivered, receipt
from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.decision import Acks, Decision, PublishResult, World
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.model.summary import summary_of
from unstuck.coordinator.publishing.background import Runs
from unstuck.coordinator.publishing.publisher import Publisher, Warehouses
from unstuck.coordinator.store.jobs import HALTED_LOOK, BeginAnswer, Begun, CommitAnswer, EndAnswer
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.token import Hint, split_member
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
MAX_ROUNDS = 25
TURN = 3  # commits with more to come in one pass; then it is another job's turn
CACHE_SECONDS = 1.0
CACHE_JOBS = 64
NEWER_LOOK = 5.0  # seconds between looks at a job that only a newer coordinator can decide


class Handled(StrEnum):
    """What a pass came to."""

    DONE = "DONE"
    MORE = "MORE"  # there is more to decide, and the job is due for it; other jobs come first
    BUSY = "BUSY"  # somebody else holds the job's lock: the reports stay pending, try again in milliseconds
    MISSING = "MISSING"  # there is no such job


class JobStore(Protocol):
    """What a pass needs of the store; the simulator has its own."""

    def begin(self, job: str, owner: str) -> Begun: ...
    def end(self, job: str, owner: str, *, anyway: bool = False) -> EndAnswer: ...
    def load(
        self, job: str, cached: JobState | None = None, changed: Sequence[str] | None = None, *, bare: bool = False
    ) -> JobState | None: ...
    def commit(self, decision: Decision, commit_id: str, due_seen: str, acks: Acks, summary: str) -> CommitAnswer: ...
    def settle(self, job: str, due: float | None, due_seen: str, acks: Acks) -> None: ...
    def halt(self, job: str, reason: Reason, commit_id: str, now: float) -> None: ...
    def slots(self, now: float, max_age: float) -> dict[str, int]: ...
    def resend_allowance(self, queues: Sequence[str], slots: Mapping[str, int]) -> dict[str, int]: ...
    def note_resent(self, resent: Mapping[str, int], dispatch_timeout: float) -> None: ...


class Outside(Warehouses, Protocol):
    """The coordinator's hands: hints into the broker, packages into the warehouse log."""

    def send(self, hints: Sequence[tuple[str, Hint]]) -> None:
        """Send hints. May lose any of them; must not raise."""


@dataclass(slots=True)
class _Pass:
    """What one pass has gathered to do after the lock is gone."""

    hints: list[tuple[str, Hint]] = field(default_factory=list)
    resent: dict[str, int] = field(default_factory=dict)
    publish: JobState | None = None
    abort: Reason | None = None
    anew: bool = False
    began: float = 0.0
    retimed: bool = False


class Coordinator:
    """Decides jobs, one pass at a time. Safe to use from several threads, processes and hosts at once."""

    def __init__(
        self,
        store: JobStore,
        outside: Outside,
        settings: Settings,
        ids: Callable[[], str],
        sleep: Callable[[float], None] = time.sleep,
        background: Runs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            ids: mints fresh random words; they become commit ids, lock owners and nonces.
            background: runs what may take long, such as publishing, off the caller's thread; by default, on it.
            clock: monotonic seconds, by which a pass finds that it stood still.
        """
        self._store = store
        self._outside = outside
        self._settings = settings
        self._ids = ids
        self._publisher = Publisher(outside, self._tell, background, sleep, clock)
        self._clock = clock
        self._cache: dict[str, tuple[float, JobState]] = {}
        self._mutex = threading.Lock()
        self._slots: tuple[float, dict[str, int]] = (0.0, {})
        self._refused: dict[str, str] = {}

    def handle(self, job: str, reports: Sequence[Delivered] = (), *, due: bool = False) -> Handled:
        """Decide one job: look at the groups that ``reports`` speak of; without any, or when ``due``, at everything.

        Raises:
            redis.RedisError: the store could not be asked. Nothing is lost: reports stay pending, the job stays due.
        """
        return self._handle(job, reports, due, None)

    def _handle(self, job: str, reports: Sequence[Delivered], due: bool, published: PublishResult | None) -> Handled:
        todo = _Pass()
        try:
            handled = self._pass(job, reports, due, published, todo)
        finally:
            # Persisted first, sent second, outside the lock (rule 10); also when a later round failed.
            self._send(todo)
        if todo.publish is not None:
            self._publisher.soon(todo.publish, todo.abort, todo.anew)
        return handled

    def _tell(self, job: str, result: PublishResult) -> bool:
        """What came of publishing is decided upon. False: the job is busy."""
        return self._handle(job, (), True, result) is not Handled.BUSY

    @property
    def exhausted(self) -> bool:
        """So many publishers hang that only another process would help."""
        return self._publisher.exhausted

    def _send(self, todo: _Pass) -> None:
        if todo.hints:
            reach(Point.BEFORE_HINT, todo.hints[0][1].job)
            try:
                self._outside.send(todo.hints)
            except Exception:
                log.exception("%d hints could not be sent; they will be again", len(todo.hints))
            reach(Point.AFTER_HINT, todo.hints[0][1].job)
        if todo.resent:
            self._store.note_resent(todo.resent, self._settings.dispatch_timeout)

    def _pass(
        self, job: str, reports: Sequence[Delivered], due: bool, published: PublishResult | None, todo: _Pass
    ) -> Handled:
        owner = self._ids()
        todo.began = self._clock()
        begun = self._store.begin(job, owner)
        if begun.answer is BeginAnswer.MISSING:
            return Handled.MISSING
        if begun.answer is BeginAnswer.BUSY:
            return Handled.BUSY
        reach(Point.AFTER_LOCK, job)
        changed = None if due or not reports else [delivered.report.token.group for delivered in reports]
        again = turn = 0
        for _ in range(MAX_ROUNDS):
            try:
                answer, more = self._round(job, begun, changed, reports, published, todo)
            except Exception as error:
                if unavailable(error):
                    raise  # the store is in trouble, not the job
                if isinstance(error, NewerJob):
                    self._leave_for_newer(job, error, begun, reports)
                    answer, more = CommitAnswer.APPLIED, False
                elif (ended := self._end_by_force(job, begun, reports, published, todo)) is not None:
                    answer, more = ended
                elif not self._refuse(job, error, begun, reports):
                    break
                else:
                    answer, more = CommitAnswer.APPLIED, False
            if answer is CommitAnswer.MISSING:
                return Handled.MISSING
            if answer is CommitAnswer.APPLIED:
                reports, published = (), None
                # Whoever met the lock busy tries again by itself: one more look for it is enough.
                if not more and self._store.end(job, owner, anyway=again > 0) is not EndAnswer.AGAIN:
                    return Handled.DONE
                again += not more
                turn += more
                if turn == TURN:
                    self._store.end(job, owner, anyway=True)
                    return Handled.MORE
            # Refused, more to do, or somebody met the lock busy: look at everything, from a fresh due.
            changed = None
            todo.began = self._clock()
            begun = self._store.begin(job, owner)
            if begun.answer is not BeginAnswer.LOCKED:
                break
        self._store.end(job, owner, anyway=True)
        return Handled.BUSY if reports or published else Handled.DONE

    def _round(
        self,
        job: str,
        begun: Begun,
        changed: Sequence[str] | None,
        reports: Sequence[Delivered],
        published: PublishResult | None,
        todo: _Pass,
    ) -> tuple[CommitAnswer, bool]:
        """Load, decide, commit once. Returns the answer, and whether there is more to decide at once."""
        cached = self._take_cached(job, begun.now)
        # Reports that never stop must not keep us from what is silent (a lost report, a dead worker, a lost hint): who
        # has not looked at everything for a sweep does so now.
        if cached is None or begun.now - cached.looked_at >= self._settings.sweep_every:
            changed = None
        state = self._store.load(job, cached, changed)
        if state is None:
            return CommitAnswer.MISSING, False
        if state is not cached:
            changed = None
        written_at = max(state.job.intent_at, state.job.started_at, state.job.counted_from, state.job.paused_at)
        lock_lapsed = self._clock() - todo.began >= self._settings.lock_ttl
        if (written_at > begun.now or lock_lapsed) and not todo.retimed:
            # Written since this pass began, by the user, or by whoever has had the lock while it stood still: its time
            # is taken anew. What lies ahead even then was written before the clock was set back.
            todo.retimed = True
            return CommitAnswer.CONFLICT, False
        return self._decide(job, state, begun, changed, reports, published, todo)

    def _end_by_force(
        self,
        job: str,
        begun: Begun,
        reports: Sequence[Delivered],
        published: PublishResult | None,
        todo: _Pass,
    ) -> tuple[CommitAnswer, bool] | None:
        """A job whose groups cannot be read or decided is ended all the same if force was asked for; else None.

        Without its groups there is nothing that it could not be decided by: all of them count as canceled.
        """
        try:
            state = self._store.load(job, bare=True)
            if state is None or state.job.terminal or state.job.intent is not Intent.FORCE_STOP:
                return None
            log.warning("job %s is ended by force without its groups, which cannot be decided", job)
            return self._decide(job, state, begun, None, reports, published, todo)
        except Exception as error:
            if unavailable(error):
                raise
            log.exception("job %s cannot even be ended by force", job)
            return None

    def _decide(
        self,
        job: str,
        state: JobState,
        begun: Begun,
        changed: Sequence[str] | None,
        reports: Sequence[Delivered],
        published: PublishResult | None,
        todo: _Pass,
    ) -> tuple[CommitAnswer, bool]:
        """Decide and commit once, from ``state``."""
        acks = receipt(state, reports)
        if state.job.terminal or (state.job.halted is not None and state.job.intent in (Intent.RUN, Intent.PAUSE)):
            due = None if state.job.terminal else begun.now + HALTED_LOOK
            self._store.settle(job, due, begun.due_seen, acks)
            return CommitAnswer.APPLIED, False
        decision = decide(state, changed, self._world(state, begun, changed is None, published))
        if changed is None:
            state.looked_at = begun.now
        elif decision.due is not None:
            # The pass began by pushing the due away, and has not looked at what may have made the job due.
            decision.due = min(decision.due, state.looked_at + self._settings.sweep_every)
        if decision.empty:
            self._store.settle(job, decision.due, begun.due_seen, acks)
        else:
            commit_id = self._ids()
            answer = self._store.commit(decision, commit_id, begun.due_seen, acks, summary_of(state))
            if answer is not CommitAnswer.APPLIED:
                return answer, False
            state.job = replace(state.job, commit=commit_id)
        self._refused.pop(job, None)
        todo.hints.extend(decision.hints)
        for queue, count in decision.resent.items():
            todo.resent[queue] = todo.resent.get(queue, 0) + count
        if decision.publish or decision.abort is not None:
            todo.publish, todo.abort, todo.anew = state, decision.abort, decision.anew
        elif not state.job.terminal and not decision.reload:
            self._keep(job, begun.now, state)
        return CommitAnswer.APPLIED, decision.more

    def _refuse(self, job: str, error: Exception, begun: Begun, reports: Sequence[Delivered]) -> bool:
        """A job that cannot be decided, twice for the same error, is halted instead of failing for ever (rule 9).

        Returns whether it was halted.
        """
        said = f"{type(error).__name__}: {error}"
        log.error("job %s could not be decided: %s", job, said, exc_info=error)
        if self._refused.get(job) != said:
            self._refused[job] = said
            return False
        self._refused.pop(job, None)
        text = f"the coordinator could not decide this job: {said[:500]}. Nothing more is started until it is resumed."
        self._store.halt(job, Reason("UNDECIDABLE", text), self._ids(), begun.now)
        acks = Acks(tuple(delivered.entry for delivered in reports), {"HALTED": len(reports)} if reports else {})
        self._store.settle(job, begun.now + HALTED_LOOK, begun.due_seen, acks)
        return True

    def _leave_for_newer(self, job: str, error: NewerJob, begun: Begun, reports: Sequence[Delivered]) -> None:
        """A job of a newer release stays due, for a newer coordinator to decide (a rolling upgrade)."""
        log.warning("job %s is left for a newer coordinator: %s", job, error)
        acks = Acks(tuple(delivered.entry for delivered in reports), {"NEWER": len(reports)} if reports else {})
        self._store.settle(job, begun.now + NEWER_LOOK, begun.due_seen, acks)

    def _world(self, state: JobState, begun: Begun, everything: bool, published: PublishResult | None) -> World:
        settings = self._settings
        slots = self._listening(begun.now)
        resend: Mapping[str, int] = {}
        overdue = begun.now - settings.dispatch_timeout
        queued = state.by_state[GroupState.QUEUED] if everything else {}
        if late := {
            state.plan.groups[split_member(group_id)[0]].spec.queue_name
            for group_id in queued
            if state.groups[group_id].hinted_at <= overdue or state.groups[group_id].hinted_at > begun.now
        }:
            resend = self._store.resend_allowance(sorted(late), slots)
        return World(
            now=begun.now,
            nonce=self._ids(),
            takeover=begun.takeover(settings.sweep_every),
            slots=slots,
            resend=resend,
            dispatch_timeout=settings.dispatch_timeout,
            dispatch_window=settings.dispatch_window,
            lease_ttl=settings.lease_ttl,
            cancel_deadline=settings.cancel_deadline,
            published=published,
        )

    def _listening(self, now: float) -> dict[str, int]:
        """Runners per queue, asked for at most once a second."""
        at, slots = self._slots
        if not 0 <= now - at < CACHE_SECONDS:
            slots = self._store.slots(now, 3 * self._settings.lease_renew + 1)
            self._slots = (now, slots)
        return slots

    # A busy job's state is kept for up to a second and used again if its commit id still is the stored one. It is
    # taken out while a pass works on it, so that no two threads ever share one.

    def _take_cached(self, job: str, now: float) -> JobState | None:
        with self._mutex:
            at, state = self._cache.pop(job, (0.0, None))
        return state if 0 <= now - at < CACHE_SECONDS else None

    def _keep(self, job: str, now: float, state: JobState) -> None:
        with self._mutex:
            self._cache[job] = (now, state)
            while len(self._cache) > CACHE_JOBS:
                del self._cache[next(iter(self._cache))]
