"""Who was up, and how late the machine was: what a judge must know before it calls a run late.

A coordinator is up while it notes itself as often as one that is well. The machine is as late as
timers and reads are.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

import redis

from tests.chaos.driver.faults import Dealt
from tests.chaos.driver.fleet import ChaosFleet
from unstuck.tasks.protocol.process_info import CoordinatorInfo
from unstuck.tasks.protocol.processes import ProcessRegistry

TIMER = 0.05  # seconds
LOOK_EVERY = 5  # timers
REDIS = "redis"
# Other faults of Redis concern tasks and their wake-ups alone.
AWAY = ("client kill", "redis restart", "redis kill -9", "redis freeze", "redis pause")
ANY = "a coordinator"


@dataclass(frozen=True, slots=True)
class Uptime:
    """What was seen.

    Attributes:
        beats: pid of a coordinator → when it noted itself.
        names: pid of a coordinator → its name.
        hits: the faults that concern Redis or a coordinator.
        waits: when each timer was to go off, and how late it did; when each read was sent, and how
            long it took.
    """

    beats: Mapping[int, Sequence[float]]
    names: Mapping[int, str]
    hits: Sequence[Dealt]
    waits: Sequence[tuple[float, float]]

    def lateness(self, begin: float, end: float) -> float:
        """How long the machine kept timers and reads waiting in this time, in all."""
        return sum(late for at, late in self.waits if begin <= at <= end)

    def up(self, begin: float, end: float, gap: float) -> bool:
        """Whether Redis was there, and one coordinator that nothing was done to; to the others at
        most one thing.

        Args:
            gap: seconds after which a coordinator that has not noted itself is not up.
        """
        hits = [hit for hit in self.hits if hit.begin <= end and hit.end >= begin]
        victims = [hit.victim for hit in hits]
        if REDIS in victims or len(victims) > 1:
            return False
        return any(
            _covers(beats, begin, end, gap)
            for pid, beats in self.beats.items()
            if self.names.get(pid) not in victims
        )


def _covers(beats: Sequence[float], begin: float, end: float, gap: float) -> bool:
    """Whether they lie from before ``begin`` to after ``end``, and no two in a row are further
    apart than ``gap``.
    """
    around = [*[at for at in beats if at <= begin][-1:], *(at for at in beats if begin < at < end)]
    around += [at for at in beats if at >= end][:1]
    whole = bool(around) and around[0] <= begin and around[-1] >= end
    return whole and all(later - one <= gap for one, later in pairwise(around))


@dataclass(slots=True)
class UptimeObserver:
    """Looks at the coordinators and sets timers, in a thread of its own."""

    fleet: ChaosFleet
    _beats: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _names: dict[int, str] = field(default_factory=dict)
    _away: list[Dealt] = field(default_factory=list)
    _waits: list[tuple[float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> UptimeObserver:
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def seen(self, past: Sequence[Dealt]) -> Uptime:
        """What was seen so far, with the faults that were dealt."""
        concerned = {ANY, *self.fleet.coordinators}
        hits = [
            hit
            for hit in past
            if hit.victim in concerned or (hit.victim == REDIS and hit.fault in AWAY)
        ]
        beats = {pid: list(beats) for pid, beats in self._beats.items()}
        return Uptime(beats, dict(self._names), [*hits, *self._away], list(self._waits))

    def _run(self) -> None:
        registry, number = ProcessRegistry(self.fleet.eye, self.fleet.keys), 0
        while True:
            at, began = time.time() + TIMER, time.monotonic()
            if self._stop.wait(TIMER):
                return
            self._waits.append((at, max(0.0, time.monotonic() - began - TIMER)))
            number += 1
            if number % LOOK_EVERY == 0:
                self._look(registry)

    def _look(self, registry: ProcessRegistry) -> None:
        begin = time.time()
        self._names |= {
            pid: name for name in self.fleet.coordinators if (pid := self.fleet.child(name).pid)
        }
        try:
            found = registry.read()
        except redis.RedisError:
            self._away.append(Dealt("no answer", REDIS, begin, time.time()))
            return
        self._waits.append((begin, time.time() - begin))
        for one in found:
            if isinstance(one, CoordinatorInfo) and one.heard_at > max(
                self._beats[one.pid][-1:], default=0.0
            ):
                self._beats[one.pid].append(one.heard_at)
