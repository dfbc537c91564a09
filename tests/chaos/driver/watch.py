"""The watch: how long each thing that was hit takes to go on again."""

# A kill or a freeze of a worker is over once each group that ran there runs again elsewhere, or has
# ended. That of a coordinator, once no report that it had read is pending. That of Redis or of the
# way to it, once a report is applied that was sent after it was back.

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import redis

from unstuck import Status
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.store.job_store import REPORT_GROUP
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.token import Offer

EVERY = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Recovery:
    """One thing that goes on again: what had been done, to whom, and after how many seconds it went
    on.
    """

    fault: str
    victim: str
    took: float


@dataclass(slots=True)
class Hit:
    """Something that was hit and does not go on yet.

    ``over`` may raise RedisError while the server is away.
    """

    fault: str
    victim: str
    since: float  # monotonic
    over: Callable[[], bool]


@dataclass(slots=True)
class Watch:
    """Looks at everything that was hit, ten times a second, in a thread of its own."""

    eye: redis.Redis
    keys: Keys
    done: list[Recovery] = field(default_factory=list)
    open: list[Hit] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def add(
        self, fault: str, victim: str, over: Callable[[], bool] | None, since: float | None = None
    ) -> None:
        """Time this one; None: nothing was going on there."""
        if over is not None:
            with self._mutex:
                self.open.append(
                    Hit(fault, victim, time.monotonic() if since is None else since, over)
                )

    def look(self) -> None:
        """Those that go on by now."""
        with self._mutex:
            hits = list(self.open)
        for hit in hits:
            try:
                over = hit.over()
            except redis.RedisError:
                continue  # the server is away; the time runs on
            if over:
                with self._mutex:
                    self.open.remove(hit)
                    self.done.append(Recovery(hit.fault, hit.victim, time.monotonic() - hit.since))

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            self.look()

    # What is hit by what. Each is called just before the fault, and may raise RedisError.

    def attempts(self, processes: list[psutil.Process]) -> Callable[[], bool] | None:
        """What runs in these processes; over once all of it runs again, or has ended."""
        pids = {process.pid for process in processes}
        running = [
            Offer(one.job, one.group, one.attempt, "")
            for one in ProcessRegistry(self.eye, self.keys).runners()
            if one.job and one.group and one.attempt and (one.pid in pids or one.worker_pid in pids)
        ]
        running = [offer for offer in running if not self._goes_on(offer)]
        return (lambda: all(self._goes_on(offer) for offer in running)) if running else None

    def _goes_on(self, offer: Offer) -> bool:
        text = self.eye.hget(self.keys.of(offer.job).groups, offer.group)
        record = GroupRecord.from_json(str(text)) if text else GroupRecord()
        again = record.epoch > offer.epoch and record.state is GroupState.RUNNING
        ended = Status(str(self.eye.hget(self.keys.of(offer.job).job, "status"))).terminal
        return again or record.state.terminal or ended

    def pending(self, pid: int) -> list[str]:
        """The reports that the coordinator with this pid has read and not finished."""
        found: list[str] = []
        for consumer in self.eye.xinfo_consumers(self.keys.reports, REPORT_GROUP):
            if consumer["name"].split(":")[1] == str(pid) and consumer["pending"]:
                entries = self.eye.xpending_range(
                    self.keys.reports, REPORT_GROUP, "-", "+", 1000, consumername=consumer["name"]
                )
                found += [str(entry["message_id"]) for entry in entries]
        return found

    def reports(self, pid: int) -> Callable[[], bool] | None:
        """What the coordinator with this pid has read; over once somebody has finished all of
        it.
        """
        mine = self.pending(pid)
        return (lambda: not self._still_pending(mine)) if mine else None

    def _still_pending(self, entries: list[str]) -> bool:
        return any(
            self.eye.xpending_range(self.keys.reports, REPORT_GROUP, entry, entry, 1)
            for entry in entries
        )

    def applying(self) -> Callable[[], bool]:
        """Over once one more report was applied than by now.

        (An answer from before the fault would not count.)
        """
        before: list[int] = []

        def over() -> bool:
            now = self.applied()
            before.append(now)
            return now > before[0]

        return over

    def applied(self) -> int:
        """Reports that coordinators have dealt with so far, whatever they were worth."""
        counted = self.eye.hgetall(self.keys.counters)
        return sum(
            int(counted.get(name, 0)) for name in ("APPLIED", "DUPLICATE", "STALE", "TERMINAL")
        )


def stated(recoveries: list[Recovery]) -> dict[str, Recovery]:
    """The slowest recovery per fault, the slowest of all first."""
    slowest: dict[str, Recovery] = {}
    for one in sorted(recoveries, key=lambda one: one.took, reverse=True):
        slowest.setdefault(one.fault, one)
    return slowest
