"""The reconciler decides one job at a time: it locks, loads, decides and commits.

After the lock is released, it wakes runners and publishes. ``decide`` returns what should happen,
and ``store`` writes it. The lock only saves double work: every commit is a compare-and-set.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache, partial

from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.decide.receipts import Applied, Delivered, receipt
from unstuck.coordinator.decide.timers.backoff import Uniform
from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.decision import Acks, Decision, Environment, PublishResult
from unstuck.coordinator.model.loading import without_groups
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState, summary_of
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.notices.rules.job_rules import notices_of_job
from unstuck.coordinator.notices.rules.subscriptions import subscriptions
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.background_tries import Publisher, Warehouses
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.coordinator.store.answers import BeginAnswer, Begun, CommitAnswer, EndAnswer
from unstuck.coordinator.store.job_store import HALTED_LOOK, Store
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.log_lines import about, also_about
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
MAX_ROUNDS = 25
TURN = 3  # commits with more to come in one pass; then it is another job's turn
NEWER_LOOK = 5.0  # seconds between looks at a job that only a newer coordinator can decide
CACHE_SECONDS = 1.0
CACHE_JOBS = 64
USUAL_SECONDS = 60.0
USUAL_NAMES = 10_000

SendWakeUps = Callable[[Mapping[str, int]], None]
"""Sends so many wake-ups to each queue. A wake-up may be lost: the sweep sends another."""


class PassResult(StrEnum):
    """The result of a pass over a job."""

    DONE = "DONE"
    MORE = "MORE"  # there is more to decide, and the job is due for it; other jobs come first
    # Another pass holds the job's lock: the reports stay pending, try again in milliseconds.
    BUSY = "BUSY"
    MISSING = "MISSING"  # there is no such job


class Round(StrEnum):
    """The result of one round of a pass."""

    DONE = "DONE"  # it was committed, and nothing is left to decide
    MORE = "MORE"  # it was committed, and there is more to decide
    REFUSED = "REFUSED"  # another commit came in between, or the clock was read too early
    MISSING = "MISSING"  # there is no such job
    FAILED = "FAILED"  # the job could not be decided, and will be tried once more


_NOT_BEGUN = {BeginAnswer.MISSING: PassResult.MISSING, BeginAnswer.BUSY: PassResult.BUSY}


class Reconciler:
    """Decides jobs, one pass at a time.

    Safe to use from several threads, processes and hosts at once.
    """

    def __init__(
        self,
        store: Store,
        send_wake_ups: SendWakeUps,
        warehouses: Warehouses,
        settings: Settings,
        ids: Callable[[], str],
        background: Background,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Uniform = random.uniform,
        rules: tuple[FleetRule, ...] = (),
    ) -> None:
        """Create the reconciler.

        Args:
            ids: creates random words for commit ids, lock owners and nonces.
            background: publishes outside the caller's thread.
            clock: monotonic seconds, by which a pass notices that its process was frozen.
            uniform: draws how long a publisher waits for a busy job.
            rules: notification rules of the fleet, beside those of each job.
        """
        self.store = store
        self.settings = settings
        self.ids = ids
        self.clock = clock
        # job → when a pass read its state, and the state. A pass takes it out, so two threads never
        # share one.
        self.cache: dict[str, tuple[float, JobState]] = {}
        self.rules = rules
        # By this, the rules of the fleet are not hashed for each commit.
        self.asked = lru_cache(1024)(lambda name, of_job: subscriptions(name, of_job, rules))
        # Name and schedule → when the usual duration was read, and the duration, in seconds.
        self._usual: dict[tuple[str, str], tuple[float, float]] = {}
        self.errors: dict[str, str] = {}  # job → the error for which its last decision failed
        self._send_wake_ups = send_wake_ups
        self._listening: tuple[float, dict[str, list[RunnerInfo]]] = (0.0, {})
        self._publisher = Publisher(
            warehouses, self._decide_published, background, sleep, clock, uniform
        )

    @property
    def exhausted(self) -> bool:
        """Whether so many publishing threads hang that only another process would help."""
        return self._publisher.exhausted

    def listening(self, now: float) -> dict[str, list[RunnerInfo]]:
        """Number of listening runners by queue, read at most once a second."""
        at, listening = self._listening
        if not 0 <= now - at < CACHE_SECONDS:
            listening = self.store.listening(now, self.settings.runner_silence)
            self._listening = (now, listening)
        return listening

    def usual(self, job: JobRecord, now: float) -> float:
        """Return the usual duration of such a job in seconds, read once a minute; 0 if unknown."""
        key = (job.name, job.schedule)
        at, seconds = self._usual.get(key, (0.0, 0.0))
        if not 0 <= now - at < USUAL_SECONDS:
            if len(self._usual) >= USUAL_NAMES:
                self._usual.clear()
            seconds = self.store.usual(*key)
            self._usual[key] = now, seconds
        return seconds

    def on_offer(self, job: str) -> int:
        """Return how many offers the job had at its last decision in this process; 0 if unknown."""
        _, state = self.cache.get(job, (0.0, None))
        return 0 if state is None else len(state.by_state[GroupState.QUEUED])

    def wake(self, now: float, lanes: Collection[str]) -> None:
        """Wake as many idle runners as ``lanes`` have ready offers."""
        try:
            if wake_ups := self.store.wake_ups(lanes, self.listening(now), now):
                self._send_wake_ups(wake_ups)
        except Exception as error:  # noqa: BLE001 - of any transport; the sweep looks again
            log.warning(
                "no wake-up could be sent; the next sweep sends it: %s: %s",
                type(error).__name__,
                error,
            )

    def reconcile(
        self, job: str, reports: Sequence[Delivered] = (), *, due: bool = False
    ) -> PassResult:
        """Decide one job: the groups that ``reports`` name, or all groups.

        Args:
            due: look at all groups.

        Raises:
            redis.RedisError: the store cannot be reached. Nothing is lost: reports stay pending,
                and the job stays due.
        """
        groups = (
            None if due or not reports else [delivered.report.token.group for delivered in reports]
        )
        return self._perform(Pass(self, job, groups, reports))

    def _decide_published(self, job: str, result: PublishResult) -> bool:
        """Decide upon the result of publishing. False: the job is busy."""
        return self._perform(Pass(self, job, published=result)) is not PassResult.BUSY

    def _perform(self, job_pass: Pass) -> PassResult:
        with about(job=job_pass.job):
            try:
                result = job_pass.run()
            finally:
                # Persisted first, sent second, outside the lock (rule 10); also when a later round
                # failed.
                self._dispatch(job_pass)
        if job_pass.publish is not None:
            self._publisher.soon(*job_pass.publish)
        return result

    def _dispatch(self, job_pass: Pass) -> None:
        if job_pass.offered_in:
            reach(Point.BEFORE_WAKE_UPS, job_pass.job)
            self.wake(job_pass.now, job_pass.offered_in)
            reach(Point.AFTER_WAKE_UPS, job_pass.job)


class Pass:
    """One pass over one job: rounds of load, decide and commit under the job's lock.

    Attributes:
        groups: the groups to look at in the next round; None for all.
        reports, published: inputs that are not decided yet.
        offered_in: lanes with new offers, whose runners are woken after the lock is released.
        publish: what to publish after the lock is released.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        job: str,
        groups: Sequence[str] | None = None,
        reports: Sequence[Delivered] = (),
        published: PublishResult | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._store = reconciler.store
        self._sweep_every = reconciler.settings.sweep_every
        self._owner = reconciler.ids()
        self.job, self.groups, self.reports, self.published = job, groups, reports, published
        self.offered_in: set[str] = set()
        self.publish: tuple[JobState, Reason | None, bool] | None = None
        self._time_was_renewed = False
        self._began, self._begun = 0.0, Begun(BeginAnswer.MISSING, 0.0)

    def run(self) -> PassResult:
        """Decide until the job is up to date, or it is another job's turn."""
        self._begin()
        if self._begun.answer in _NOT_BEGUN:
            return _NOT_BEGUN[self._begun.answer]
        reach(Point.AFTER_LOCK, self.job)
        rounds: Counter[Round] = Counter()
        while rounds.total() < MAX_ROUNDS:
            ended = self._round_or_give_up()
            rounds[ended] += 1
            if ended is Round.FAILED:
                break
            if ended is Round.MISSING:
                return PassResult.MISSING
            if ended is not Round.REFUSED:
                self.reports, self.published = (), None
            if (result := self._over(ended, rounds)) is not None:
                return result
            # Refused, more to do, or another pass met the lock busy: look at everything, from a
            # fresh due.
            self.groups = None
            self._begin()
            if self._begun.answer is not BeginAnswer.LOCKED:
                break
        self._end(anyway=True)
        return PassResult.BUSY if self.reports or self.published else PassResult.DONE

    @property
    def now(self) -> float:
        """Start of the last round, by the clock of Redis."""
        return self._begun.now

    def _begin(self) -> None:
        self._began = self._reconciler.clock()
        self._begun = self._store.begin(self.job, self._owner, self.groups or ())

    def _end(self, *, anyway: bool) -> EndAnswer:
        return self._store.end(self.job, self._owner, anyway=anyway)

    def _round_or_give_up(self) -> Round:
        """One round.

        A job that cannot be decided is left to a newer coordinator, ended by force or halted.
        """
        try:
            return self._round()
        except NewerJob as error:
            # A job of a newer release stays due, for a newer coordinator to decide (a rolling
            # upgrade).
            log.warning("job %s is left for a newer coordinator: %s", self.job, error)
            return self._look_later("NEWER", NEWER_LOOK)
        except Exception as error:
            if unavailable(error):
                raise  # the store is in trouble, not the job
            return self._end_by_force() or self._halt(error)

    def _round(self) -> Round:
        """Load, decide and commit once."""
        if self._begun.ended and not self._has_refusals():
            self._reconciler.cache.pop(self.job, None)
            # After an outage, a wide job has many such reports.
            return self._acknowledge(Applied.TERMINAL, None)
        cached = self._cached()
        # Reports that never stop must not keep a job from a look at its silent groups (a lost
        # report, a dead worker, a lost offer): all groups are looked at once in a sweep's period,
        # and when the time of one has come.
        look_at = 0.0
        if cached is not None:
            look_at = min(cached.looked_at + self._sweep_every, cached.look_at)
        if self._begun.now >= look_at:
            self.groups = None
        state = self._store.load(self.job, cached, self.groups, self._begun)
        if state is None:
            return Round.MISSING
        if state.job.schedule:
            also_about(schedule=state.job.schedule)
        if state is not cached:
            self.groups = None
        if not self._time_was_renewed and self._time_is_old(state.job):
            self._time_was_renewed = True
            return Round.REFUSED
        return self._decide(state)

    def _has_refusals(self) -> bool:
        return any(delivered.report.refused for delivered in self.reports)

    def _over(self, ended: Round, rounds: Mapping[Round, int]) -> PassResult | None:
        """End the pass after a round, if it is done or had its turn; None to go on."""
        if ended is Round.DONE:
            # A pass that met the lock busy tries again: one more round for it is enough.
            answer = self._end(anyway=rounds[Round.DONE] > 1)
            return None if answer is EndAnswer.AGAIN else PassResult.DONE
        if rounds[Round.MORE] == TURN:
            self._end(anyway=True)
            return PassResult.MORE
        return None

    def _cached(self) -> JobState | None:
        """Take the cached state of the job; None if it is too old."""
        at, cached = self._reconciler.cache.pop(self.job, (0.0, None))
        return cached if 0 <= self._begun.now - at < CACHE_SECONDS else None

    def _time_is_old(self, job: JobRecord) -> bool:
        """Return whether the job was written after this pass began.

        A user, or a pass that took over the lock, may have done so. Then this pass reads the clock
        again. A time that still lies ahead was written before the clock was set back.
        """
        written_at = max(job.intent_at, job.started_at, job.counted_from, job.paused_at)
        lock_lapsed = self._reconciler.clock() - self._began >= self._reconciler.settings.lock_term
        return written_at > self._begun.now or lock_lapsed

    def _decide(self, state: JobState) -> Round:
        """Decide and commit once, from ``state``."""
        acks = receipt(state, self.reports)
        job, now, due_seen = state.job, self._begun.now, self._begun.due_seen
        if job.terminal or (job.halted is not None and job.intent in (Intent.RUN, Intent.PAUSE)):
            due = None if job.terminal else now + HALTED_LOOK
            self._store.acknowledge(self.job, due, due_seen, acks)
            return Round.DONE
        env = self._environment(state)
        decision = decide(state, self.groups, env)
        self._tell(state, decision, env)
        self._note_look(state, decision)
        if decision.empty:
            self._store.acknowledge(self.job, decision.due, due_seen, acks, decision.offers)
        else:
            commit_id = self._reconciler.ids()
            answer = self._store.commit(decision, commit_id, due_seen, acks, summary_of(state))
            if answer is CommitAnswer.MISSING:
                return Round.MISSING
            if answer is not CommitAnswer.APPLIED:
                return Round.REFUSED
            state.job = replace(state.job, commit=commit_id)
        self._committed(state, decision)
        return Round.MORE if decision.more else Round.DONE

    def _note_look(self, state: JobState, decision: Decision) -> None:
        """Record when everything was last looked at, and when that is due again."""
        state.look_at = decision.due or 0.0
        if decision.more:
            state.looked_at = 0.0  # the next pass looks at everything, whatever report it is for
        elif self.groups is None:
            state.looked_at = self._begun.now
        elif decision.due is not None:
            # The pass began by pushing the due away, and has not looked at what may have made the
            # job due.
            decision.due = min(decision.due, state.looked_at + self._sweep_every)

    def _tell(self, state: JobState, decision: Decision, env: Environment) -> None:
        """Add the notices to the decision, and the alerts to the record."""
        rules = self._reconciler.rules
        # While the state has records to delete, no notice is sent: the job is decided again at
        # once.
        if decision.reload or not (rules or state.plan.notify or state.job.alerts):
            return
        job, everything = state.job, self.groups is None
        subscribed = self._reconciler.asked(job.name, state.plan.notify)
        usual = partial(self._reconciler.usual, job, env.now)
        alerting = notices_of_job(
            subscribed, decision.old, state, env, decision.due, usual=usual, everything=everything
        )
        decision.notices = tuple(notice.to_json() for notice in alerting.notices)
        if alerting.alerts != job.alerts:
            decision.job = state.job = replace(job, alerts=alerting.alerts)
        if alerting.look_at is not None and decision.due is not None:
            decision.due = min(decision.due, alerting.look_at)

    def _tell_of_halt(self, decision: Decision) -> None:
        """Add the notices of a halt, without the groups, which are undecidable."""
        env = Environment(self._begun.now, self._reconciler.ids())
        self._tell(without_groups(decision.job), decision, env)

    def _environment(self, state: JobState) -> Environment:
        """Return the environment of a decision. Raises: redis.RedisError."""
        settings, now = self._reconciler.settings, self._begun.now
        listening = self._reconciler.listening(now)
        takeover = self._begun.takeover(settings.sweep_every)
        return Environment.of(
            settings,
            now,
            self._reconciler.ids(),
            listening,
            takeover=takeover,
            published=self.published,
        )

    def _committed(self, state: JobState, decision: Decision) -> None:
        self._reconciler.errors.pop(self.job, None)
        self.offered_in.update(decision.offers.values())
        if decision.publish or decision.abort is not None:
            self.publish = state, decision.abort, decision.new_try
        elif not state.job.terminal and not decision.reload:
            if len(self._reconciler.cache) >= CACHE_JOBS:
                self._reconciler.cache.clear()
            self._reconciler.cache[self.job] = (self._begun.now, state)

    def _end_by_force(self) -> Round | None:
        """End an undecidable job after a force-stop; its groups count as canceled."""
        try:
            state = self._store.load(self.job, bare=True)
            if state is None or state.job.terminal or state.job.intent is not Intent.FORCE_STOP:
                return None
            log.warning(
                "job %s is ended by force without its groups, which cannot be decided", self.job
            )
            self.groups = None
            # Decided again on the same state, which cannot be loaded a second time.
            while (ended := self._decide(state)) is Round.MORE:
                self.reports = ()
            return ended
        except Exception as error:
            if unavailable(error):
                raise
            log.exception("job %s cannot even be ended by force", self.job)
            return None

    def _halt(self, error: Exception) -> Round:
        """Halt a job that failed twice with the same error (rule 9)."""
        errors, text = self._reconciler.errors, f"{type(error).__name__}: {error}"
        log.error("job %s could not be decided: %s", self.job, text, exc_info=error)
        if errors.get(self.job) != text:
            errors[self.job] = text
            return Round.FAILED
        errors.pop(self.job, None)
        text = (
            f"the coordinator could not decide this job: {text[:500]}. Nothing more is started "
            "until it is resumed."
        )
        self._store.halt(
            self.job,
            Reason("UNDECIDABLE", text),
            self._reconciler.ids(),
            self._begun.now,
            self._tell_of_halt,
        )
        return self._look_later("HALTED", HALTED_LOOK)

    def _look_later(self, counter: str, wait: float) -> Round:
        """Set the next look at the job after ``wait`` seconds."""
        return self._acknowledge(counter, self._begun.now + wait)

    def _acknowledge(self, counter: str, due: float | None) -> Round:
        """Decide nothing: the reports are counted and acknowledged."""
        entries = tuple(delivered.entry for delivered in self.reports)
        acks = Acks(entries, {counter: len(entries)} if entries else {})
        self._store.acknowledge(self.job, due, self._begun.due_seen, acks)
        return Round.DONE
