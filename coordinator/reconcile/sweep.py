"""Decides every due job periodically, so that a lost message delays a job only by moments."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from unstuck.coordinator.decide.timers.backoff import BUSY_WAIT
from unstuck.coordinator.publishing.staging_gc import StagingCollector
from unstuck.coordinator.reconcile.expected_jobs import ExpectedJobs
from unstuck.coordinator.reconcile.reconciler import PassResult, Reconciler
from unstuck.coordinator.reconcile.schedule_sweep import ScheduleSweep
from unstuck.coordinator.store.indexes import Indexes
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.log_lines import about
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
BATCH = 200


class Sweep:
    """Writes a heartbeat, then decides the jobs that are due.

    Two sweeps may run at once: the lock of each job avoids double work.
    """

    def __init__(
        self,
        store: Store,
        reconciler: Reconciler,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        collector: StagingCollector | None = None,
        indexes: Indexes | None = None,
        schedules: ScheduleSweep | None = None,
        expected: ExpectedJobs | None = None,
    ) -> None:
        """Create the sweep.

        Args:
            clock: monotonic seconds.
            collector: removes the staging of ended jobs; None: it stays.
            indexes: repaired, a part in each sweep; None: not repaired.
            schedules: decided when they are due, before the jobs; None: not decided here.
            expected: judges names whose jobs no schedule submits; None: not judged here.
        """
        self._clock = clock
        self._store = store
        self._reconciler = reconciler
        self._settings = settings
        self._collector = collector
        self._indexes = indexes
        self._schedules = schedules
        self._expected = expected
        # Job → the time at which it becomes due, for those that `run_due` saw before their time.
        # None before its first call.
        self._terms: dict[str, float] | None = None
        # The last sweep of this process, by ``clock``; for people only.
        self.ended_at: float | None = None

    def run(self, after_each: Callable[[], None] = lambda: None) -> int:
        """Sweep once. Return how many jobs were decided.

        Args:
            after_each: called after each job; a sweep may take minutes.

        Raises:
            redis.RedisError: the store cannot be reached; the jobs stay due.
        """
        now, gap = self._store.tick(self._settings.sweep_every, self._settings.lease_ttl)
        if gap > 3 * self._settings.sweep_every or gap < 0:
            self._log_grace(now, gap)
        self._wake(now)
        ticked = self._clock()

        def goes_on() -> None:
            """Renew the heartbeat.

            Otherwise the sweep after a long one would start with a grace period.
            """
            nonlocal ticked
            if self._clock() - ticked >= self._settings.sweep_every:
                at, _ = self._store.tick(self._settings.sweep_every, self._settings.lease_ttl)
                self._wake(at)
                ticked = self._clock()
            after_each()

        if self._schedules is not None:
            self._schedules.run(goes_on)
        self._judge_expected()
        decided = self._decide_due(now, goes_on)
        self._store.forget_ended(now)
        if self._indexes is not None:
            self._indexes.repair()
        if self._collector is not None:
            self._collector.start(now)
        self.ended_at = self._clock()
        return decided

    def _decide_due(self, now: float, goes_on: Callable[[], None]) -> int:
        """Decide all jobs that are due at ``now``, in batches. Return how many.

        A decided job is due later. A job is decided again only if it has more to decide, and after
        the others.
        """
        decided = 0
        met: set[str] = set()
        batch = self._store.due(now, BATCH)
        while batch:
            more: list[str] = []
            for job in batch:
                result = self._reconcile(job)
                goes_on()
                decided += result not in (None, PassResult.BUSY)
                if result is PassResult.MORE:
                    more.append(job)
            met.update(batch)
            fresh = [job for job in self._store.due(now, BATCH + len(met)) if job not in met]
            batch = fresh or more
        return decided

    def _log_grace(self, now: float, gap: float) -> None:
        """Log that leases do not lapse for a while, since no sweep ran for ``gap`` seconds."""
        level, what = (
            logging.WARNING,
            f"no sweep had run for {gap:.1f}s (or the clock was set back)",
        )
        if gap >= now:  # no tick is on record: its age is that of the epoch
            level, what = logging.INFO, "this is the first sweep on this Redis"
        lease_ttl = self._settings.lease_ttl
        log.log(level, "%s: no lease counts as lapsed for the next %.0fs", what, lease_ttl)

    def _wake(self, now: float) -> None:
        self._store.free_slots()
        self._reconciler.wake(now, self._store.lanes())

    def _judge_expected(self) -> None:
        """Judge the expected jobs. An error does not stop the decisions about jobs."""
        if self._expected is None:
            return
        try:
            self._expected.run()
        except Exception as error:
            if unavailable(error):
                raise
            log.exception("expected jobs could not be judged; the next sweep tries again")

    def _reconcile(self, job: str) -> PassResult | None:
        """Decide one job. An error does not stop the decisions about other jobs."""
        with about(job=job):
            try:
                return self._reconciler.reconcile(job)
            except Exception as error:
                if unavailable(error):
                    raise
                log.exception("job %s could not be decided; it stays due", job)
                return None

    def run_due(self, within: float, after_each: Callable[[], None] = lambda: None) -> float:
        """Decide schedules and jobs as soon as they become due.

        They become due when a lock or lease of a dead process, a backoff, or a timeout ends. A job
        that a report has made due is left to the coordinator that reads the report, and to the next
        sweep. The first call of a process decides all that is overdue, since the process may have
        started after the end of a lock.

        Args:
            within: seconds until the next call at the latest.
            after_each: called after each schedule and job.

        Returns: seconds after which it is to be called again, at most ``within``.
        """
        wait = within if self._schedules is None else min(within, self._schedules.run(after_each))
        now, due = self._store.first_due(BATCH)
        terms = due if self._terms is None else self._terms
        for job in [job for job, at in due.items() if at <= now and terms.get(job) == at]:
            self._reconcile(job)
            after_each()
        self._terms = {job: at for job, at in due.items() if at > now}
        return max(BUSY_WAIT[1], min([wait, *(at - now for at in self._terms.values())]))

    def run_if_overdue(self, after_each: Callable[[], None] = lambda: None) -> int | None:
        """Call `run` if no process has swept for two periods, so that nothing depends on beat."""
        if 0 <= self._store.silence() <= 2 * self._settings.sweep_every:
            return None
        return self.run(after_each)
