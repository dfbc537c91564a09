"""End a Celery process that is connected, has messages waiting, and takes none.

A supervisor then starts another. A worker that is busy, that is told to stop, or that cannot ask
Redis has not stalled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import redis
from celery import bootsteps
from celery.worker import state

from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings, settings, whoami
from unstuck.tasks.transport.redis_client import connect, takes_writes

log = logging.getLogger(__name__)

STORE_WITHIN = 10.0  # seconds for a note in Redis, before this process ends
SHOWN_FOR = 86400.0  # seconds for which people see in the fleet that a process stalled
# In UNSTUCK_STALLED_AFTER; they are counted, not seconds, because a frozen process receives
# nothing.
LOOKS = 10


class Silence:
    """Counts the looks in a row at which a process had received nothing although it should have."""

    def __init__(self) -> None:
        self._messages = 0
        self._messages_before = 0  # at the last look
        self._connection: Any = None  # at the last look
        self._looks = 0

    def received(self) -> None:
        """Count a message."""
        self._messages += 1

    def look(self, should_receive: bool, connection: Any) -> bool:
        """Return whether the process has stalled: silent at more than `LOOKS` looks in a row.

        Args:
            should_receive: messages wait, and this process could take one.
            connection: that of Celery to the broker. A process that connects again has a bad line
                and no stall.
        """
        silent = (
            should_receive
            and self._messages == self._messages_before
            and connection is self._connection
        )
        self._messages_before, self._connection = self._messages, connection
        self._looks = self._looks + 1 if silent else 0
        return self._looks > LOOKS


def on_each_message(qos: Any, heard: Callable[[], None]) -> None:
    """Call ``heard`` for each message, also for those without a task, such as expired sweeps."""
    append = qos.append

    def counted(*args: Any) -> None:
        heard()
        append(*args)

    qos.append = counted


class StallDetector(bootsteps.StartStopStep):  # type: ignore[misc]
    """Begins to watch when Celery has its first consumer, and goes on through every reconnect.

    It is a thread with a connection of its own, because Celery's loop is what may be broken.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    consequence: str  # what becomes of this process, to end a sentence

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.silence = Silence()
        self._thread: threading.Thread | None = None

    def start(self, consumer: Any) -> None:
        on_each_message(consumer.task_consumer.channel.qos, self.silence.received)
        if self._thread is not None or not self.at_work() or not settings().stalled_after:
            return
        self._thread = threading.Thread(
            target=self._watch_or_give_up,
            args=(consumer, settings()),
            name="stall-detector",
            daemon=True,
        )
        self._thread.start()

    def at_work(self) -> bool:
        """False once this process was told to stop: from then on it may take nothing."""
        raise NotImplementedError

    def give_up(self) -> None:
        """End this process, as a failure. From any thread."""
        raise NotImplementedError

    def free(self, consumer: Any) -> bool:
        """Return whether Celery would take another message, by ``worker_disable_prefetch``."""
        return len(state.reserved_requests) < int(consumer.pool.num_processes or 0)

    def _watch_or_give_up(self, consumer: Any, settings: Settings) -> None:
        try:
            self._watch(consumer, settings)
        except Exception as error:  # noqa: BLE001
            # Whatever the error is, nobody else would notice a stall.
            message = (
                "the stall detector of %s has failed, so it ends, and its supervisor "
                "restarts it: %s: %s"
            )
            run_with_deadline(log.critical, message, whoami(), type(error).__name__, error)
            self.give_up()

    def _watch(self, consumer: Any, settings: Settings) -> None:
        every, keys = settings.stalled_after / LOOKS, Keys(settings.prefix)
        client = connect(settings.redis_url, timeout=max(0.2, min(5.0, every)), repeats=0)
        while self.at_work():
            time.sleep(every)
            # Read each time: ``celery control cancel_consumer`` changes it.
            queues = list(consumer.app.amqp.queues.consume_from)
            should_receive = (
                messages_wait(client, keys, queues) and self.at_work() and self.free(consumer)
            )
            if self.silence.look(should_receive, consumer.connection):
                # With a deadline: what hangs may be the log, with the main thread in it.
                message = "%s has stalled: for %.0fs it has received nothing from %s, %s"
                what = (whoami(), settings.stalled_after, ", ".join(queues), self.consequence)
                run_with_deadline(log.critical, message, *what)
                run_with_deadline(_note_stall, client, keys, seconds=STORE_WITHIN)
                self.give_up()
        client.close()


def messages_wait(client: redis.Redis, keys: Keys, queues: Iterable[str]) -> bool:
    """Return whether a message is on one of ``queues`` and can be taken.

    False if Redis does not answer or refuses writes: to take a message is a write.
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
    """Let the fleet list show it for a day. Nothing is decided from it."""
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
