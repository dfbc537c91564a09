"""The stall detector: a thread that ends a Celery process which is connected, has messages waiting and takes none.

A supervisor then starts another. A worker that is busy, that is told to stop, or that cannot ask Redis has not stalled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import redis
from celery import bootsteps
from celery.worker import state

from unstuck.tasks.process.deadlines import run_with_deadline
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings, settings, whoami
from unstuck.tasks.transport.redis_client import connect, takes_writes

log = logging.getLogger(__name__)

STORE_WITHIN = 10.0  # seconds for a note in Redis, before this process ends
SHOWN_FOR = 86400.0  # seconds for which people see in the fleet that a process stalled
LOOKS = 10  # in the time after which a process counts as stalled; so many do not miss messages by chance


@dataclass(frozen=True, slots=True)
class Look:
    """What the main process of a worker or a coordinator sees at one moment.

    Attributes:
        at: monotonic seconds.
        received: messages that it has received so far.
        free: it would take another one: it has an idle slot and was not told to stop.
        waiting: something lies on a queue that it listens to; False also when Redis could not be asked.
    """

    at: float
    received: int
    free: bool
    waiting: bool


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known so far. ``since``: from when on it has received nothing although it should; None: all is well."""

    last: Look | None = None
    since: float | None = None

    def after(self, look: Look, *, within: float) -> Silence:
        """What is known after another look.

        Args:
            within: the longest normal time between two looks, in seconds. After a longer gap this process itself did
                not run (it was frozen, or its host slept), so the count starts again.
        """
        last = self.last
        if last is None or look.received != last.received or look.at - last.at > within:
            return Silence(look)
        if not (look.free and look.waiting):
            return Silence(look)
        return Silence(look, look.at if self.since is None else self.since)

    @property
    def stalled_for(self) -> float:
        """Seconds for which it has stalled as far as anybody can tell; 0 if it has not."""
        return 0.0 if self.since is None or self.last is None else self.last.at - self.since


class StallDetector(bootsteps.StartStopStep):  # type: ignore[misc]
    """Begins to watch when Celery has its first consumer, and goes on through every reconnect.

    A thread, and not a timer of Celery's own loop: that loop is what may be broken. It reads nothing but the lengths of
    the queues, over a connection of its own. Workers and coordinators end in ways of their own.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    parting: str  # what becomes of this process, to end a sentence

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._received = 0
        self._thread: threading.Thread | None = None

    def start(self, consumer: Any) -> None:
        self._count(consumer.task_consumer.channel.qos)
        if self._thread is not None or not self.at_work() or not settings().stalled_after:
            return
        self._thread = threading.Thread(
            target=self._watch_or_give_up, args=(consumer, settings()), name="stall-detector", daemon=True
        )
        self._thread.start()

    def at_work(self) -> bool:
        """False once this process was told to stop: from then on it may take nothing."""
        raise NotImplementedError

    def give_up(self) -> None:
        """End this process, as a failure. From any thread."""
        raise NotImplementedError

    def free(self, consumer: Any) -> bool:
        """Would Celery take another message? As it asks itself, with ``worker_disable_prefetch``."""
        return len(state.reserved_requests) < int(consumer.pool.num_processes or 0)

    def _count(self, qos: Any) -> None:
        """Count what arrives on this connection: every message, also those of which Celery makes no task.

        A coordinator throws sweeps away that came too late for it. That is no silence.
        """
        append = qos.append

        def counted(*args: Any) -> None:
            self._received += 1
            append(*args)

        qos.append = counted

    def _watch_or_give_up(self, consumer: Any, settings: Settings) -> None:
        """Until this process is told to stop, by us or by anybody. No end of it may go unnoticed."""
        try:
            self._watch(consumer, settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else would notice a stall
            said = "the stall detector of %s has failed, so it ends, and its supervisor restarts it: %s: %s"
            run_with_deadline(log.critical, said, whoami(), type(error).__name__, error)
            self.give_up()

    def _watch(self, consumer: Any, settings: Settings) -> None:
        every = settings.stalled_after / LOOKS
        client = connect(settings.redis_url, timeout=max(0.2, min(5.0, every)), repeats=0)
        silence = Silence()
        while self.at_work():
            time.sleep(every)
            queues = list(consumer.app.amqp.queues.consume_from)  # may change: ``celery control cancel_consumer``
            waiting = _waiting(client, Keys(settings.prefix), queues)
            look = Look(time.monotonic(), self._received, self.at_work() and self.free(consumer), waiting)
            silence = silence.after(look, within=3 * every + 1.0)
            if silence.stalled_for >= settings.stalled_after:
                # With a deadline: what hangs may be the log, with the main thread in it.
                said = "%s has stalled: for %.0fs it has received nothing from %s, %s"
                run_with_deadline(log.critical, said, whoami(), silence.stalled_for, ", ".join(queues), self.parting)
                run_with_deadline(_note_stall, client, Keys(settings.prefix), seconds=STORE_WITHIN)
                self.give_up()
        client.close()


def _waiting(client: redis.Redis, keys: Keys, queues: Iterable[str]) -> bool:
    """Does anything lie on one of these queues? False where nobody can tell, which is held against nobody.

    Nor can anybody take it from a server that refuses writes: to take a message is one.
    """
    try:
        with client.pipeline(transaction=False) as pipe:
            takes_writes(pipe, keys)
            for queue in queues:
                pipe.llen(keys.queue(queue))
            return any(cast(list[int], pipe.execute()))
    except redis.RedisError:
        return False


def _note_stall(client: redis.Redis, keys: Keys) -> None:
    """For people: the fleet list shows it for a day. Nothing is decided from it."""
    try:
        seconds, micros = client.time()
        now = seconds + micros / 1e6
        with client.pipeline(transaction=True) as pipe:
            pipe.zadd(keys.stalled, {whoami(): now})
            pipe.zremrangebyscore(keys.stalled, "-inf", now - SHOWN_FOR)
            pipe.expire(keys.stalled, round(SHOWN_FOR))
            pipe.execute()
    except redis.RedisError as error:
        log.warning("that %s has stalled could not be noted in the fleet list: %s", whoami(), error)
