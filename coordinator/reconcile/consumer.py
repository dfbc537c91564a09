"""Reads reports of workers, and passes them to the reconciler, grouped by job.

A report stays pending until the commit that applies it acknowledges it, so none is lost. A busy
job's reports are tried again after milliseconds, a dead coordinator's are claimed, and a report
that can never be applied becomes a dead letter.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import redis

from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.decide.timers.backoff import AWAY_WAIT, BUSY_WAIT, Uniform, random_wait
from unstuck.coordinator.reconcile.heartbeat import EVERY, Heartbeat
from unstuck.coordinator.reconcile.reconciler import PassResult, Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.reports import ReportStream, StreamEntry
from unstuck.tasks.errors import Malformed
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.log_lines import about
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
BATCH = 500
LINGER = 0.005  # seconds for which reports are collected while they come faster than they are read
# Seconds for which reports wait while nothing waits for them: one pass costs as much for many as
# for one.
WAIT = 0.1
POISON_AFTER = 5  # deliveries of a report that raises each time: it becomes a dead letter
KILLER_AFTER = 20  # deliveries of a report whose coordinators died or hung each time


@dataclass(slots=True)
class _Busy:
    """A job to decide soon: its lock was held, there is more to decide, or nothing waits for it.

    Its reports are pending.

    Attributes:
        successes: how many of the reports are successes.
        urgent: one of them is neither a success nor a claim.
    """

    entries: list[StreamEntry] = field(default_factory=list)
    tries: int = 0
    next_at: float = 0.0
    successes: int = 0
    urgent: bool = False

    def add(self, entries: Sequence[StreamEntry]) -> None:
        self.entries.extend(entries)
        for entry in entries:
            self.successes += entry.fields.get("kind") == "succeeded"
            self.urgent |= entry.fields.get("kind") not in ("succeeded", "claimed")


class PublishersExhausted(Exception):
    """Too many publishing threads of this process hang; only another process can publish."""


class Consumer:
    """One consumer of the report stream."""

    def __init__(
        self,
        stream: ReportStream,
        reconciler: Reconciler,
        sweep: Sweep,
        settings: Settings,
        heartbeat: Heartbeat,
        clock: Callable[[], float] = time.monotonic,
        uniform: Uniform = random.uniform,
        wait: float = WAIT,
    ) -> None:
        """Create the consumer.

        Args:
            clock: monotonic seconds.
            wait: seconds for which reports may be collected while no runner waits for their effect.
        """
        self.sweep = sweep
        self._stream, self._reconciler, self._settings, self._heartbeat = (
            stream,
            reconciler,
            settings,
            heartbeat,
        )
        self._clock, self._uniform, self._wait = clock, uniform, wait
        self._busy: dict[str, _Busy] = {}
        self._last_batch = 0  # outcomes in the last batch
        self._next_claim = 0.0
        self._next_trim = self._next_look = self._next_note = 0.0
        self._read_at: float | None = None  # when a worker's report was last read
        self.stopping = threading.Event()

    def run(self) -> None:
        """Consume until ``stopping`` is set, and wait while Redis is unavailable.

        Other errors are raised.
        """
        away = 0
        opened = False
        while not self.stopping.is_set():
            try:
                if not opened:
                    self._stream.open()
                    opened = True
                self.step()
                away = 0
            except redis.RedisError as error:
                if _no_group(error):
                    opened = False  # the store came back empty or rolled back
                    continue
                if not unavailable(error):
                    raise
                away += 1
                if away == 1:
                    log.warning("the store is away, reports wait in it: %s", error)
                self.stopping.wait(random_wait(AWAY_WAIT, away, self._uniform))
        self._heartbeat.leave()

    def step(self) -> None:
        """Run one round: new reports, reports of dead coordinators, busy jobs, an overdue sweep."""
        if self._last_batch > 1:
            # One pass over a job costs as much for many reports as for one.
            self.stopping.wait(LINGER)
        entries = self._stream.read(BATCH, self._read_timeout())
        self._last_batch = sum(not _claims(entry) for entry in entries)
        self.apply(entries)
        now = self._clock()
        if now >= self._next_claim:
            self._next_claim = now + self._settings.report_idle / 5
            self._claim_idle()
        self.again(now)
        if now >= self._next_look:
            # At least twice in the term of a lock, so that its end is known before.
            within = min(self._settings.sweep_every, self._settings.lock_term) / 2
            self._next_look = now + self.sweep.run_due(within, self._beat)
            self.sweep.run_if_overdue(self._beat)
        if now >= self._next_trim:
            self._next_trim = now + 30.0
            self._tidy()
        self._beat()

    def _claim_idle(self) -> None:
        """Take over the reports of dead coordinators."""
        waiting = {entry.id for busy in self._busy.values() for entry in busy.entries}
        claimed = self._stream.claim_idle(self._settings.report_idle, BATCH)
        idle = [entry for entry in claimed if entry.id not in waiting]
        # A report that ended each coordinator that read it is not tried for ever.
        self._poisoned(
            idle, KILLER_AFTER + 1, "no coordinator that took it finished it or logged an error"
        )
        self.apply(entry for entry in idle if entry.deliveries <= KILLER_AFTER)

    def _tidy(self) -> None:
        """Trim the stream, and forget silent processes. Raises: PublishersExhausted."""
        if self._reconciler.exhausted:
            raise PublishersExhausted(
                "too many publishers hang in a warehouse; another process may find it well"
            )
        self._stream.trim()
        self._heartbeat.forget_silent()

    def _beat(self) -> None:
        """Record the heartbeat of this coordinator, about once a second.

        It is called after each job, so that a coordinator that works for minutes in one round is
        not taken for silent.
        """
        now = self._clock()
        if now >= self._next_note:
            self._next_note = now + EVERY
            self._heartbeat.beat(
                *(None if at is None else now - at for at in (self._read_at, self.sweep.ended_at))
            )

    def again(self, now: float) -> bool:
        """Retry the busy jobs that are due. Return whether there were any."""
        come = [job for job, busy in self._busy.items() if busy.next_at <= now]
        for job in come:
            busy = self._busy.pop(job)
            self._try(job, busy.entries, busy.tries)
        return bool(come)

    def apply(self, entries: Iterable[StreamEntry]) -> None:
        """Group entries by job, turn unreadable ones into dead letters, and apply the others."""
        by_job: dict[str, list[StreamEntry]] = {}
        for entry in entries:
            try:
                job = _job_of(entry)
            except Malformed as error:
                self._dead_letter([entry], "UNREADABLE", str(error))
            else:
                by_job.setdefault(job, []).append(entry)
                if not _wakes(entry):
                    self._read_at = self._clock()
        for job in by_job:
            reach(Point.AFTER_READ, job)
        for job, batch in by_job.items():
            waiting = self._busy.setdefault(job, _Busy(next_at=self._clock() + self._wait))
            waiting.add(batch)
            if not waiting.tries and not self._may_wait(job, waiting):
                del self._busy[job]
                self._try(job, waiting.entries, 0)

    def _may_wait(self, job: str, waiting: _Busy) -> bool:
        """Return whether nothing waits for a pass over the job.

        That is so if a claim was made, or if runners have enough of its offers.
        """
        if waiting.urgent:
            return False
        return not waiting.successes or 2 * waiting.successes < self._reconciler.on_offer(job)

    def _try(self, job: str, entries: list[StreamEntry], tries: int) -> None:
        """Apply the reports of one job. An error concerns that job alone: the jobs behind it go on.

        Reports that raise stay pending and are delivered again, here or elsewhere; after
        ``POISON_AFTER`` deliveries they become dead letters.
        """
        with about(job=job):
            try:
                self._apply_to(job, entries, tries)
            except Exception as error:
                if unavailable(error) or _no_group(error):
                    raise
                log.exception(
                    "%d reports of job %s could not be applied; they are delivered again",
                    len(entries),
                    job,
                )
                self._poisoned(
                    entries,
                    POISON_AFTER,
                    f"applying it raised {type(error).__name__}: {str(error)[:300]}",
                )
        self._beat()

    def _poisoned(self, entries: Sequence[StreamEntry], limit: int, why: str) -> None:
        """Make dead letters of reports that were delivered ``limit`` times.

        Wake-ups are only acked.
        """
        for entry in self._ack_wake_ups([entry for entry in entries if entry.deliveries >= limit]):
            self._dead_letter([entry], "POISON", f"after {entry.deliveries} deliveries, {why}")

    def _dead_letter(self, entries: Sequence[StreamEntry], code: str, why: str) -> None:
        self._stream.dead_letter(entries, f"{code}: {why}", code)
        log.error(
            "reports %s are dead letters now: %s: %s",
            ", ".join(entry.id for entry in entries),
            code,
            why,
        )

    def _ack_wake_ups(self, entries: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Ack the wake-ups among ``entries``, since their jobs stay in the due index.

        Returns the reports.
        """
        self._stream.ack([entry for entry in entries if _wakes(entry)])
        return [entry for entry in entries if not _wakes(entry)]

    def _apply_to(self, job: str, entries: list[StreamEntry], tries: int) -> None:
        reports = [Delivered(entry.id, entry.report) for entry in entries if not _wakes(entry)]
        result = self._reconciler.reconcile(job, reports, due=len(reports) < len(entries))
        if result is PassResult.BUSY:
            tries += 1
            self._busy[job] = _Busy(
                entries, tries, self._clock() + random_wait(BUSY_WAIT, tries, self._uniform)
            )
            return
        unknown = self._ack_wake_ups(entries)
        if result is PassResult.MORE:
            self._busy[job] = _Busy(next_at=self._clock())
        if result is PassResult.MISSING and unknown:
            self._dead_letter(unknown, "UNKNOWN_JOB", f"no job {job} is in the store")

    def _read_timeout(self) -> float:
        """Return how long to wait for new reports before other work is due, in seconds."""
        now = self._clock()
        until = min(
            [self._next_claim, self._next_look, *(busy.next_at for busy in self._busy.values())]
        )
        return min(max(until - now, 0.001), 1.0)


def _no_group(error: BaseException) -> bool:
    """Return whether the stream or its consumer group is missing, as after a rollback."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def _wakes(entry: StreamEntry) -> bool:
    """Not a worker's report but a wake-up: "this job is due now"."""
    return entry.fields.get("kind") == "due"


def _claims(entry: StreamEntry) -> bool:
    return entry.fields.get("kind") == "claimed"


def _job_of(entry: StreamEntry) -> str:
    """Return the job of a report. Raises: Malformed."""
    if _wakes(entry):
        job = entry.fields.get("job")
        if not job:
            raise Malformed("a wake-up needs the field 'job'")
        return job
    return entry.report.token.job
