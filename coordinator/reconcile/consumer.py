"""The report consumer reads reports, gives them to the reconciler job by job, and loses none.

A report stays pending until the commit that applied it acks it. A busy job's reports are tried again after
milliseconds, a dead coordinator's are claimed, and a report that can never be applied becomes a dead letter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import redis

from unstuck.coordinator.decide.deadlines import AWAY_WAIT, BUSY_WAIT, random_wait
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.reconcile.heartbeat import EVERY, Heartbeat
from unstuck.coordinator.reconcile.reconciler import PassResult, Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.reports import Entry, ReportStream
from unstuck.tasks.errors import Malformed
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.report import NewerSchema, Report
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
BATCH = 500
POISON_AFTER = 5  # deliveries of a report that raises each time: it becomes a dead letter
KILLER_AFTER = 20  # deliveries of a report whose coordinators died or hung each time


@dataclass(slots=True)
class _Busy:
    """A job to be tried again soon: its lock was held, or there is more to decide. Its reports are pending."""

    entries: list[Entry] = field(default_factory=list)
    tries: int = 0
    next_at: float = 0.0


class PublishersExhausted(Exception):
    """So many publishers of this process hang that only another process can publish."""


class Consumer:
    """One consumer of the report stream. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        stream: ReportStream,
        reconciler: Reconciler,
        sweep: Sweep,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._stream = stream
        self._reconciler = reconciler
        self._sweep = sweep
        self._settings = settings
        self._clock = clock
        self._busy: dict[str, _Busy] = {}
        self._next_claim = 0.0
        self._next_trim = 0.0
        self._next_look = 0.0
        self._heartbeat = heartbeat
        self._next_note = 0.0
        self._read_at: float | None = None  # when a worker's report was last read
        self.stopping = threading.Event()

    def run(self) -> None:
        """Consume until ``stopping`` is set. A store that is away is waited for; any other error is raised."""
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
                self.stopping.wait(random_wait(AWAY_WAIT, away))
        if self._heartbeat is not None:
            self._heartbeat.leave()

    def step(self) -> None:
        """One round: new reports, reports of dead coordinators, busy jobs, an overdue sweep."""
        self.apply(self._stream.read(BATCH, self._read_timeout()), self._beat)
        now = self._clock()
        if now >= self._next_claim:
            self._next_claim = now + self._settings.report_idle / 5
            held = {entry.id for busy in self._busy.values() for entry in busy.entries}
            idle = self._stream.claim_idle(self._settings.report_idle, BATCH)
            self.apply(self._without_killers([entry for entry in idle if entry.id not in held]), self._beat)
        self.again(now, self._beat)
        if now >= self._next_look:
            self._next_look = now + self._settings.sweep_every / 2
            self._sweep.run_if_overdue(self._beat)
        if now >= self._next_trim:
            self._next_trim = now + 30.0
            if self._reconciler.exhausted:
                raise PublishersExhausted("too many publishers hang in a warehouse; another process may find it well")
            self._stream.trim()
            self._stream.readmit()
            if self._heartbeat is not None:
                self._heartbeat.forget_silent()
        self._beat()

    def _beat(self) -> None:
        """Record the heartbeat of this coordinator, about once a second.

        It is called after each job, so that a coordinator that works for minutes in one round is not taken for silent.
        """
        now = self._clock()
        if self._heartbeat is not None and now >= self._next_note:
            self._next_note = now + EVERY
            self._heartbeat.note(_ago(self._read_at, now), _ago(self._sweep.ended_at, now))

    def again(self, now: float, after_each: Callable[[], None] = lambda: None) -> bool:
        """Try the busy jobs whose time has come, and call ``after_each`` job. Returns whether there were any."""
        come = [job for job, busy in self._busy.items() if busy.next_at <= now]
        for job in come:
            busy = self._busy.pop(job)
            self._try(job, busy.entries, busy.tries)
            after_each()
        return bool(come)

    def apply(self, entries: Iterable[Entry], after_each: Callable[[], None] = lambda: None) -> None:
        """Sort entries by job, make dead letters of unreadable ones, and apply the rest; call ``after_each`` job."""
        by_job: dict[str, list[Entry]] = {}
        for entry in entries:
            try:
                job = _job_of(entry)
            except NewerSchema as error:
                self._stream.leave_for_newer([entry], error.version)
                log.warning("report %s left for a newer coordinator: %s", entry.id, error)
            except Malformed as error:
                self._stream.dead_letter([entry], f"UNREADABLE: {error}", "UNREADABLE")
                log.error("report %s is a dead letter now, it cannot be read: %s", entry.id, error)
            else:
                by_job.setdefault(job, []).append(entry)
                if not _only_wakes(entry):
                    self._read_at = self._clock()
        for job in by_job:
            reach(Point.AFTER_READ, job)
        for job, batch in by_job.items():
            waiting = self._busy.get(job)
            if waiting is not None:
                waiting.entries.extend(batch)
            else:
                self._try(job, batch, 0)
            after_each()

    def _try(self, job: str, entries: list[Entry], tries: int) -> None:
        """Apply the reports of one job. An error concerns that job alone: the jobs behind it go on.

        Reports that raise stay pending and are delivered again, here or elsewhere; after ``POISON_AFTER`` deliveries
        they become dead letters.
        """
        try:
            self._apply_to(job, entries, tries)
        except Exception as error:
            if unavailable(error) or _no_group(error):
                raise
            log.exception("%d reports of job %s could not be applied; they are delivered again", len(entries), job)
            poison = [entry for entry in entries if entry.deliveries >= POISON_AFTER]
            self._dead_letter(poison, f"applying it raised {type(error).__name__}: {str(error)[:300]}")

    def _without_killers(self, entries: list[Entry]) -> list[Entry]:
        """The entries worth another try: a report that ended each coordinator that read it is not tried for ever."""
        self._dead_letter(
            [entry for entry in entries if entry.deliveries > KILLER_AFTER],
            "no coordinator that took it finished it, nor said why not",
        )
        return [entry for entry in entries if entry.deliveries <= KILLER_AFTER]

    def _dead_letter(self, entries: list[Entry], why: str) -> None:
        """Make dead letters of reports that cannot be applied. Wake-ups are only acked: the job stays due."""
        self._stream.ack([entry for entry in entries if _only_wakes(entry)])
        for entry in entries:
            if not _only_wakes(entry):
                text = f"POISON: after {entry.deliveries} deliveries, {why}"
                self._stream.dead_letter([entry], text, "POISON")
                log.error("report %s is a dead letter now, %s", entry.id, text)

    def _apply_to(self, job: str, entries: list[Entry], tries: int) -> None:
        reports = [Delivered(entry.id, Report.from_fields(entry.fields)) for entry in entries if not _only_wakes(entry)]
        result = self._reconciler.reconcile(job, reports, due=len(reports) < len(entries))
        if result is PassResult.BUSY:
            tries += 1
            self._busy[job] = _Busy(entries, tries, self._clock() + random_wait(BUSY_WAIT, tries))
            return
        woke = [entry for entry in entries if _only_wakes(entry)]
        self._stream.ack(woke)
        if result is PassResult.MORE:
            self._busy[job] = _Busy(next_at=self._clock())
        if result is PassResult.MISSING:
            unknown = [entry for entry in entries if not _only_wakes(entry)]
            if unknown:
                self._stream.dead_letter(unknown, f"UNKNOWN_JOB: no job {job} is in the store", "UNKNOWN_JOB")
                log.error("%d reports are dead letters now: no job %s is in the store", len(unknown), job)

    def _read_timeout(self) -> float:
        """How long to wait for new reports before other work is due, in seconds."""
        now = self._clock()
        until = min([self._next_claim, self._next_look, *(busy.next_at for busy in self._busy.values())])
        return min(max(until - now, 0.001), 1.0)


def _no_group(error: BaseException) -> bool:
    """The stream or its consumer group is not there: the store came back empty or rolled back."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else now - at


def _only_wakes(entry: Entry) -> bool:
    """Not a worker's report but a wake-up: "this job is due now"."""
    return entry.fields.get("kind") == "due"


def _job_of(entry: Entry) -> str:
    """Raises: Malformed."""
    if _only_wakes(entry):
        job = entry.fields.get("job")
        if not job:
            raise Malformed("a wake-up needs the field 'job'")
        return job
    return Report.from_fields(entry.fields).token.job
