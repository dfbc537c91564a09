"""Ears: a thread in a worker's main process that notices when this worker has gone deaf, and then ends it.

Its supervisor starts another. A thread, and not a timer of Celery's own loop: that loop is what may be broken. It has a
connection of its own to the store, and reads nothing but the lengths of the queues. It must never end a worker that
is merely busy; what deaf means stands in ``stall_policy``. Workers (``worker.stall``) and coordinators
(``reconcile.bootsteps``) end in ways of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, cast

import redis
from celery import bootsteps
from celery.worker import state

from unstuck.tasks.process.deadlines import run_with_deadline
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings, settings, whoami
from unstuck.tasks.transport.redis_client import connect, takes_writes
from unstuck.tasks.transport.stall_policy import LOOKS, Hearing, Look

log = logging.getLogger(__name__)

STORE_WITHIN = 10.0  # seconds for a word to the store, before this process ends
SHOWN_FOR = 86400.0  # seconds for which people see in the fleet that somebody went deaf


class Ears(bootsteps.StartStopStep):  # type: ignore[misc]
    """Begins to listen when Celery has its first consumer, and goes on through every reconnect."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    parting: str  # what becomes of this process, to end a sentence

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._received = 0
        self._thread: threading.Thread | None = None

    def start(self, consumer: Any) -> None:
        self._count(consumer.task_consumer.channel.qos)
        if self._thread is not None or not self.at_work() or not settings().deaf_after:
            return
        self._thread = threading.Thread(target=self._listen, args=(consumer, settings()), name="ears", daemon=True)
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

    def _listen(self, consumer: Any, settings: Settings) -> None:
        """Until this process is told to stop, by us or by anybody. No end of it may go unnoticed."""
        try:
            self._hark(consumer, settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else would hear that this worker is deaf
            said = "the ears of %s have failed, so it ends, and its supervisor restarts it: %s: %s"
            run_with_deadline(log.critical, said, whoami(), type(error).__name__, error)
            self.give_up()

    def _hark(self, consumer: Any, settings: Settings) -> None:
        every = settings.deaf_after / LOOKS
        client = connect(settings.redis_url, timeout=max(0.2, min(5.0, every)), repeats=0)
        hearing = Hearing()
        while self.at_work():
            time.sleep(every)
            queues = list(consumer.app.amqp.queues.consume_from)  # may change: ``celery control cancel_consumer``
            waiting = _waiting(client, Keys(settings.prefix), queues)
            look = Look(time.monotonic(), self._received, self.at_work() and self.free(consumer), waiting)
            hearing = hearing.after(look, within=3 * every + 1.0)
            if hearing.deaf_for >= settings.deaf_after:
                # With a deadline: what hangs may be the log, with the main thread in it.
                said = "%s is deaf: for %.0fs it has received nothing from %s, %s"
                run_with_deadline(log.critical, said, whoami(), hearing.deaf_for, ", ".join(queues), self.parting)
                run_with_deadline(_leave_word, client, Keys(settings.prefix), seconds=STORE_WITHIN)
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


def _leave_word(client: redis.Redis, keys: Keys) -> None:
    """For people: the fleet list shows it for a day. Nothing is decided from it."""
    try:
        seconds, micros = client.time()
        now = seconds + micros / 1e6
        with client.pipeline(transaction=True) as pipe:
            pipe.zadd(keys.deaf, {whoami(): now})
            pipe.zremrangebyscore(keys.deaf, "-inf", now - SHOWN_FOR)
            pipe.expire(keys.deaf, round(SHOWN_FOR))
            pipe.execute()
    except redis.RedisError as error:
        log.warning("that %s went deaf could not be noted in the fleet list: %s", whoami(), error)
