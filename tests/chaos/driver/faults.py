"""The faults: what is done to whom. A seed fixes their order, their victims and how long they last,
not their timing.

Each takes a random source and answers with an ``Injected``: what was done, and how it is undone if
it lasts.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil
import redis

from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.proxy import Link
from tests.chaos.driver.wake_ups import Thief, put_back
from tests.chaos.driver.watch import Watch
from tests.support.failpoints import Effect, order
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.keys import queue_of
from unstuck.tasks.protocol.processes import ProcessRegistry

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that was dealt.

    Attributes:
        fault: its name.
        victim: the process it hit, or ``redis``.
        what: what was done, for people.
        lasts: seconds until ``undo`` is called; 0 for what is over at once.
    """

    fault: str
    victim: str
    what: str
    lasts: float = 0.0
    undo: Undo | None = None


class Faults:
    """Deals faults to one fleet.

    Every kind is dealt once before any is dealt again, so that a minute has seen most of them.
    """

    def __init__(self, fleet: ChaosFleet, watch: Watch, rng: random.Random) -> None:
        self._fleet, self._watch, self._rng = fleet, watch, rng
        self.kinds: dict[str, Callable[[], Injected | None]] = {
            "kill worker": lambda: self._kill(
                "kill worker", self._a_worker(), "main process", self._main
            ),
            "kill runner": lambda: self._kill(
                "kill runner", self._a_worker(), "runner", self._runner
            ),
            "kill watchdog": lambda: self._kill(
                "kill watchdog", self._a_worker(), "watchdog", self._watchdog
            ),
            "kill host": lambda: self._kill(
                "kill host", self._a_worker(), "whole tree", fleet.tree
            ),
            "kill coordinator": lambda: self._kill(
                "kill coordinator", self._a_coordinator(), "process", self._main
            ),
            "kill beat": lambda: self._kill("kill beat", "beat", "process", self._main),
            "freeze worker": lambda: self._freeze(
                "freeze worker", self._a_worker(), "main process", self._main
            ),
            "freeze runner": lambda: self._freeze(
                "freeze runner", self._a_worker(), "runner", self._runner
            ),
            "freeze watchdog": lambda: self._freeze(
                "freeze watchdog", self._a_worker(), "watchdog", self._watchdog
            ),
            "freeze host": lambda: self._freeze(
                "freeze host", self._a_worker(), "whole tree", fleet.tree
            ),
            "freeze coordinator": lambda: self._freeze(
                "freeze coordinator", self._a_coordinator(), "process", self._main
            ),
            "freeze beat": lambda: self._freeze("freeze beat", "beat", "process", self._main),
            "client kill": self._client_kill,
            "redis restart": lambda: self._restart(signal.SIGTERM),
            "redis kill -9": lambda: self._restart(signal.SIGKILL),
            "redis freeze": self._redis_freeze,
            "redis pause": self._redis_pause,
            "replies dropped": self._drop_replies,
            "half-open": self._half_open,
            "link held": self._hold,
            "link cut": self._cut,
            "broker keys": self._broker_keys,
            "wake-ups lost": self._wake_ups_lost,
            "wake-ups late": self._wake_ups_late,
            "wake-ups doubled": self._wake_ups_doubled,
            "offers lost": self._offers_lost,
            "offers doubled": self._offers_doubled,
            "offers rolled back": self._offers_rolled_back,
            "kill after take": lambda: self._kill_at("kill after take", Point.AFTER_CLAIM),
            "kill after finish": lambda: self._kill_at("kill after finish", Point.AFTER_FINISH),
            # Only coordinators of this fleet come there: they submit the runs of schedules.
            "kill before submit": lambda: self._kill_at(
                "kill before submit", Point.BEFORE_SUBMIT, "a coordinator"
            ),
            "kill after submit": lambda: self._kill_at(
                "kill after submit", Point.AFTER_SUBMIT, "a coordinator"
            ),
        }
        self._deck = self._deal()

    def _deal(self) -> Iterator[str]:
        while True:
            names = list(self.kinds)
            self._rng.shuffle(names)
            yield from names

    def inject(self) -> Injected | None:
        """The next fault; None if nobody was there to be hit."""
        name = next(self._deck)
        try:
            return self.kinds[name]()
        except (psutil.NoSuchProcess, redis.RedisError):
            return None  # gone a moment before the fault; an outage of Redis is under way

    # Victims.

    def _a_worker(self) -> str:
        return self._rng.choice(self._fleet.workers)

    def _a_coordinator(self) -> str:
        return self._rng.choice(self._fleet.coordinators)

    def _a_link(self) -> tuple[str, Link]:
        name = self._rng.choice([*self._fleet.workers, *self._fleet.coordinators, "beat", "app"])
        return name, self._fleet.proxy.links[name]

    def _main(self, name: str) -> list[psutil.Process]:
        found = self._fleet.main(name)
        return [] if found is None else [found]

    def _busy(self) -> set[int]:
        """The pids of runners that run something; none in an outage of Redis, which is no reason to
        spare one.
        """
        with suppress(redis.RedisError):
            return {
                one.pid
                for one in ProcessRegistry(self._fleet.eye, self._fleet.keys).runners()
                if one.job
            }
        return set()

    def _runner(self, name: str) -> list[psutil.Process]:
        """One of its runners: one that runs something, if any does."""
        busy = self._busy()
        return sorted(self._fleet.runners(name), key=lambda one: one.pid not in busy)[:1]

    def _watchdog(self, name: str) -> list[psutil.Process]:
        """That of such a runner."""
        busy = self._busy()
        return sorted(self._fleet.watchdogs(name), key=lambda one: one.ppid() not in busy)[:1]

    def _time(self, fault: str, name: str, processes: Sequence[psutil.Process]) -> None:
        """Let the watch time what runs in these processes.

        What is hit in an outage of Redis is not timed.
        """
        with suppress(redis.RedisError):
            if name in self._fleet.workers:
                self._watch.add(fault, name, self._watch.attempts(list(processes)))
            elif name in self._fleet.coordinators and (main := self._fleet.main(name)) is not None:
                self._watch.add(fault, name, self._watch.reports(main.pid))

    # Processes.

    def _kill(
        self, fault: str, name: str, what: str, victims: Callable[[str], list[psutil.Process]]
    ) -> Injected | None:
        found = victims(name)
        if not found:
            return None
        if what != "watchdog":  # the runner replaces it, and its attempt goes on
            self._time(fault, name, found)
        for process in found:
            send(process, signal.SIGKILL)
        return Injected(fault, name, f"SIGKILL to its {what} (pid {found[0].pid})")

    def _freeze(
        self, fault: str, name: str, what: str, victims: Callable[[str], list[psutil.Process]]
    ) -> Injected | None:
        lasts = self._rng.uniform(0.5, 8.0)
        found = victims(name)
        if not found:
            return None
        if what not in ("watchdog", "main process"):  # their attempts go on
            self._time(fault, name, found)
        for process in found:
            send(process, signal.SIGSTOP)

        def thaw() -> None:
            for process in found:
                send(process, signal.SIGCONT)

        return Injected(
            fault,
            name,
            f"SIGSTOP to its {what} (pid {found[0].pid}) for {lasts:.1f} s",
            lasts,
            thaw,
        )

    def _kill_at(self, fault: str, point: Point, victim: str = "a runner") -> Injected:
        """The next process that comes to this point dies there, with what Redis has just given to
        it.
        """
        shot = order(self._fleet.arms, point, Effect.KILL)
        lasts = self._rng.uniform(2.0, 5.0)
        what = f"SIGKILL to whoever comes to {point} within {lasts:.1f} s"
        return Injected(fault, victim, what, lasts, lambda: shot.unlink(missing_ok=True))

    # Redis.

    def _back(self, fault: str) -> None:
        self._watch.add(fault, "redis", self._watch.applying())

    def _client_kill(self) -> Injected:
        killed = self._fleet.eye.client_kill_filter(_type="normal", skipme=True)
        self._back("client kill")
        return Injected("client kill", "redis", f"CLIENT KILL of {killed} connections")

    def _restart(self, number: signal.Signals) -> Injected | None:
        if self._fleet.server.pid is None:
            return None
        fault = "redis restart" if number is signal.SIGTERM else "redis kill -9"
        lasts = self._rng.uniform(0.1, 4.0)
        self._fleet.server.end(number)

        def start() -> None:
            self._fleet.server.start()
            self._back(fault)

        return Injected(
            fault, "redis", f"{number.name}, started again after {lasts:.1f} s", lasts, start
        )

    def _redis_freeze(self) -> Injected | None:
        lasts = self._rng.uniform(0.5, 6.0)
        if self._fleet.server.pid is None:
            return None
        server = psutil.Process(self._fleet.server.pid)
        send(server, signal.SIGSTOP)

        def thaw() -> None:
            send(server, signal.SIGCONT)
            self._back("redis freeze")

        return Injected("redis freeze", "redis", f"SIGSTOP for {lasts:.1f} s", lasts, thaw)

    def _redis_pause(self) -> Injected:
        lasts = self._rng.uniform(0.5, 5.0)
        self._fleet.eye.client_pause(round(lasts * 1000))
        return Injected(
            "redis pause",
            "redis",
            f"CLIENT PAUSE for {lasts:.1f} s",
            lasts,
            lambda: self._back("redis pause"),
        )

    def _broker_keys(self) -> Injected:
        """Everything that belongs to Celery, in the middle of it."""
        mine = list(self._fleet.eye.scan_iter("unstuck:celery:*", count=1000))
        if mine:
            self._fleet.eye.delete(*mine)
        self._back("broker keys")
        return Injected("broker keys", "redis", f"{len(mine)} keys of the broker deleted")

    # Wake-ups and offers.

    def _thief(self) -> Thief:
        return Thief(
            self._fleet.server.url, [self._fleet.keys.queue(queue) for queue in self._fleet.queues]
        )

    def _wake_ups_lost(self) -> Injected:
        """Most of them: a worker that asked before the thief did gets some."""
        lasts, thief = self._rng.uniform(2.0, 8.0), self._thief()

        def undo() -> None:
            thief.stop()
            self._back("wake-ups lost")

        return Injected(
            "wake-ups lost", "redis", f"wake-ups are lost for {lasts:.1f} s", lasts, undo
        )

    def _wake_ups_late(self) -> Injected:
        lasts, thief = self._rng.uniform(2.0, 8.0), self._thief()

        def undo() -> None:
            thief.stop()
            with suppress(redis.RedisError):  # an outage of Redis is under way: then they are lost
                put_back(self._fleet.eye, thief.taken)
            self._back("wake-ups late")

        return Injected(
            "wake-ups late", "redis", f"wake-ups are held up for {lasts:.1f} s", lasts, undo
        )

    def _wake_ups_doubled(self) -> Injected:
        lasts, thief = self._rng.uniform(0.5, 3.0), self._thief()

        def undo() -> None:
            thief.stop()
            with suppress(redis.RedisError):
                put_back(self._fleet.eye, thief.taken, times=10)
            self._back("wake-ups doubled")

        return Injected(
            "wake-ups doubled",
            "redis",
            f"wake-ups of {lasts:.1f} s come late, ten times each",
            lasts,
            undo,
        )

    def _offers_lost(self) -> Injected:
        """Some entries of each ready set, or all of them."""
        share, lost = self._rng.choice((0.5, 1.0)), 0
        for ready in self._lanes():
            mine = [
                str(offer)
                for offer in self._fleet.eye.zrange(ready, 0, -1)
                if self._rng.random() < share
            ]
            lost += int(self._fleet.eye.zrem(ready, *mine)) if mine else 0
        self._back("offers lost")
        return Injected("offers lost", "redis", f"{lost} offers deleted from the ready sets")

    def _offers_doubled(self) -> Injected:
        """What runs or has ended stands ready once more, and what waits for a slot stands outside
        its lane too.
        """
        eye, keys, again = self._fleet.eye, self._fleet.keys, 0
        lanes = self._lanes()
        for job in eye.zrange(keys.jobs, 0, -1):
            for group, text in eye.hgetall(keys.of(str(job)).groups).items():
                record = GroupRecord.from_json(str(text))
                if record.epoch and record.state is not GroupState.QUEUED:
                    again += int(
                        eye.zadd(
                            self._rng.choice(lanes), {str(record.offer(str(job), str(group))): 0}
                        )
                    )
        for lane in lanes:
            if lane != queue_of(lane) and (standing := eye.zrange(lane, 0, -1)):
                again += int(eye.zadd(queue_of(lane), dict.fromkeys(map(str, standing), 0)))
        self._back("offers doubled")
        return Injected(
            "offers doubled", "redis", f"{again} offers stand ready where they should not"
        )

    def _offers_rolled_back(self) -> Injected:
        """What stood ready some seconds ago stands ready again, and nothing that was added
        since.
        """
        lasts, eye = self._rng.uniform(0.5, 4.0), self._fleet.eye
        before = {lane: eye.zrange(lane, 0, -1, withscores=True) for lane in self._lanes()}

        def undo() -> None:
            with suppress(
                redis.RedisError
            ):  # an outage of Redis is under way: then nothing is rolled back
                pipe = eye.pipeline()
                pipe.delete(*self._lanes())
                for lane, standing in before.items():
                    if standing:
                        pipe.zadd(lane, dict(standing))
                pipe.execute()
            self._back("offers rolled back")

        what = f"the ready sets will be as they are now in {lasts:.1f} s"
        return Injected("offers rolled back", "redis", what, lasts, undo)

    def _lanes(self) -> list[str]:
        """The keys of all ready sets. Raises: redis.RedisError."""
        keys = self._fleet.keys
        listed = self._fleet.eye.zrange(keys.lanes, 0, -1)
        return sorted(keys.ready(str(lane)) for lane in {*self._fleet.queues, *listed})

    # The way to it.

    def _drop_replies(self) -> Injected:
        name, link = self._a_link()
        lasts = self._rng.uniform(0.2, 5.0)
        number = self._fleet.proxy.do(lambda: link.drop_replies(True))

        def undo() -> None:
            self._fleet.proxy.do(lambda: link.drop_replies(False))
            self._back("replies dropped")

        what = f"replies on {number} connections dropped for {lasts:.1f} s"
        return Injected("replies dropped", name, what, lasts, undo)

    def _hold(self) -> Injected:
        name, link = self._a_link()
        lasts = self._rng.uniform(0.5, 8.0)
        self._time("link held", name, self._fleet.tree(name))
        number = self._fleet.proxy.do(lambda: link.hold(True))

        def undo() -> None:
            self._fleet.proxy.do(lambda: link.hold(False))

        return Injected(
            "link held", name, f"{number} connections carry nothing for {lasts:.1f} s", lasts, undo
        )

    def _half_open(self) -> Injected:
        name, link = self._a_link()
        self._time("half-open", name, self._fleet.tree(name))
        number = self._fleet.proxy.do(link.half_open)
        return Injected("half-open", name, f"{number} connections are dead, and it is not told")

    def _cut(self) -> Injected:
        name, link = self._a_link()
        number = self._fleet.proxy.do(link.cut)
        return Injected("link cut", name, f"{number} connections reset")


@dataclass(frozen=True, slots=True)
class Dealt:
    """A fault that is over: from when to when it lasted, in seconds since the epoch."""

    fault: str
    victim: str
    begin: float
    end: float


class Injector:
    """What is being done right now, and undoing it in time. ``past``: what is over."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lasting: list[
            tuple[float, float, Injected]
        ] = []  # until when by the monotonic clock, since when
        self.past: list[Dealt] = []

    @property
    def lasting(self) -> list[Injected]:
        return [injected for _, _, injected in self._lasting]

    def inject(self) -> Injected | None:
        begin = time.time()
        injected = self._faults.inject()
        if injected is not None and injected.undo is not None:
            self._lasting.append((time.monotonic() + injected.lasts, begin, injected))
        elif injected is not None:
            self.past.append(Dealt(injected.fault, injected.victim, begin, time.time()))
        return injected

    def undo_due(self, *, everything: bool = False) -> list[Injected]:
        """Undo what has lasted long enough; the last that was done is the first that is undone."""
        now = time.monotonic()
        over = [one for one in self._lasting if everything or one[0] <= now]
        self._lasting = [one for one in self._lasting if one not in over]
        for _, begin, injected in reversed(over):
            if injected.undo is not None:
                injected.undo()
            self.past.append(Dealt(injected.fault, injected.victim, begin, time.time()))
        return [injected for _, _, injected in over]


def send(process: psutil.Process, number: signal.Signals) -> None:
    """A signal, never to another process that got its number."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
