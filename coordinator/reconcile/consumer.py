"""The report consumer: reads reports, hands them to ``act`` job by job, and forgets none.

A report stays pending until the commit that applied it acks it. A busy job's reports are tried again after
milliseconds; those of a coordinator that died are claimed by another. One that cannot be applied however often it is
tried is parked, and holds up nobody. Runs as one supervised thread (``bootstep``); it never forks, and an error of the
stream itself that is not the store being away ends it, visibly.
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
from unstuck.coordinator.reconcile.heartbeat import EVERY, Presence
from unstuck.coordinator.reconcile.reconciler import Coordinator, Handled
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.reports import Entry, Inbox
from unstuck.tasks.errors import Malformed
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.report import NewerSchema, Report
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
BATCH = 500
POISON_AFTER = 5  # deliveries of a report that raised again: it is parked
KILLER_AFTER = 20  # deliveries of a report that nobody finished nor raised over: its coordinators died or hung under it


@dataclass(slots=True)
class _Busy:
    """A job to be tried again soon: somebody held its lock, or there is more to decide. Its reports are pending."""

    entries: list[Entry] = field(default_factory=list)
    tries: int = 0
    next_at: float = 0.0


class AllHang(Exception):
    """This process can publish no more, whatever a warehouse that hung answers now."""


class Consumer:
    """One consumer of the report stream. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        inbox: Inbox,
        coordinator: Coordinator,
        sweep: Sweep,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        presence: Presence | None = None,
    ) -> None:
        self._inbox = inbox
        self._coordinator = coordinator
        self._sweep = sweep
        self._settings = settings
        self._clock = clock
        self._busy: dict[str, _Busy] = {}
        self._next_claim = 0.0
        self._next_trim = 0.0
        self._next_look = 0.0
        self._presence = presence
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
                    self._inbox.open()
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
        if self._presence is not None:
            self._presence.leave()

    def step(self) -> None:
        """One round: new reports, reports of the dead, busy jobs, the sweep nobody did."""
        self.apply(self._inbox.read(BATCH, self._patience()), self._show)
        now = self._clock()
        if now >= self._next_claim:
            self._next_claim = now + self._settings.report_idle / 5
            held = {entry.id for busy in self._busy.values() for entry in busy.entries}
            idle = self._inbox.claim_idle(self._settings.report_idle, BATCH)
            self.apply(self._without_killers([entry for entry in idle if entry.id not in held]), self._show)
        self.again(now, self._show)
        if now >= self._next_look:
            self._next_look = now + self._settings.sweep_every / 2
            self._sweep.run_if_overdue(self._show)
        if now >= self._next_trim:
            self._next_trim = now + 30.0
            if self._coordinator.exhausted:
                raise AllHang("too many publishers hang in a warehouse; another process may find it well")
            self._inbox.trim()
            self._inbox.readmit()
            if self._presence is not None:
                self._presence.forget_silent()
        self._show()

    def _show(self) -> None:
        """Note for people that this coordinator is at work, about once a second.

        After each job that was met and at the end of a round: one that hangs is seen to be silent, and one that works
        for minutes in one round, when there was an outage, is not.
        """
        now = self._clock()
        if self._presence is not None and now >= self._next_note:
            self._next_note = now + EVERY
            self._presence.note(_ago(self._read_at, now), _ago(self._sweep.ended_at, now))

    def again(self, now: float, after_each: Callable[[], None] = lambda: None) -> bool:
        """Try the jobs once more whose time has come, and call ``after_each`` job. Returns whether there were any."""
        come = [job for job, busy in self._busy.items() if busy.next_at <= now]
        for job in come:
            busy = self._busy.pop(job)
            self._try(job, busy.entries, busy.tries)
            after_each()
        return bool(come)

    def apply(self, entries: Iterable[Entry], after_each: Callable[[], None] = lambda: None) -> None:
        """Sort entries by job, park what nobody can apply, and hand the rest over; call ``after_each`` job."""
        by_job: dict[str, list[Entry]] = {}
        for entry in entries:
            try:
                job = _job_of(entry)
            except NewerSchema as error:
                self._inbox.leave_for_newer([entry], error.version)
                log.warning("report %s left for a newer coordinator: %s", entry.id, error)
            except Malformed as error:
                self._inbox.park([entry], f"UNREADABLE: {error}", "UNREADABLE")
                log.error("report %s parked, it cannot be read: %s", entry.id, error)
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
        """Hand over the reports of one job. An error is that job's own: those behind it are applied all the same.

        What raised stays pending and is delivered again, here or elsewhere; after ``POISON_AFTER`` deliveries it is
        parked.
        """
        try:
            self._hand_over(job, entries, tries)
        except Exception as error:
            if unavailable(error) or _no_group(error):
                raise
            log.exception("%d reports of job %s could not be applied; they are delivered again", len(entries), job)
            poison = [entry for entry in entries if entry.deliveries >= POISON_AFTER]
            self._set_aside(poison, f"applying it raised {type(error).__name__}: {str(error)[:300]}")

    def _without_killers(self, entries: list[Entry]) -> list[Entry]:
        """Those that are worth another try: whatever ended each coordinator that had it is not tried for ever."""
        self._set_aside(
            [entry for entry in entries if entry.deliveries > KILLER_AFTER],
            "no coordinator that took it finished it, nor said why not",
        )
        return [entry for entry in entries if entry.deliveries <= KILLER_AFTER]

    def _set_aside(self, entries: list[Entry], why: str) -> None:
        """Park reports that cannot be applied. Wake-ups say nothing that is worth keeping: the job stays due."""
        self._inbox.ack([entry for entry in entries if _only_wakes(entry)])
        for entry in entries:
            if not _only_wakes(entry):
                text = f"POISON: after {entry.deliveries} deliveries, {why}"
                self._inbox.park([entry], text, "POISON")
                log.error("report %s parked, %s", entry.id, text)

    def _hand_over(self, job: str, entries: list[Entry], tries: int) -> None:
        reports = [Delivered(entry.id, Report.from_fields(entry.fields)) for entry in entries if not _only_wakes(entry)]
        handled = self._coordinator.handle(job, reports, due=len(reports) < len(entries))
        if handled is Handled.BUSY:
            tries += 1
            self._busy[job] = _Busy(entries, tries, self._clock() + random_wait(BUSY_WAIT, tries))
            return
        woke = [entry for entry in entries if _only_wakes(entry)]
        self._inbox.ack(woke)
        if handled is Handled.MORE:
            self._busy[job] = _Busy(next_at=self._clock())
        if handled is Handled.MISSING:
            unknown = [entry for entry in entries if not _only_wakes(entry)]
            if unknown:
                self._inbox.park(unknown, f"UNKNOWN_JOB: no job {job} is in the store", "UNKNOWN_JOB")
                log.error("%d reports parked: no job %s is in the store", len(unknown), job)

    def _patience(self) -> float:
        """How long to wait for new reports before something else is to be done, in seconds."""
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
