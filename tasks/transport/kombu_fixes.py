"""Fixes of faults in kombu and Celery that stop a worker for ever; each says in which version the fault was seen last.

Wake-ups are sent without these waits: the sweep sends others where one is lost.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Any
from urllib.parse import quote

import kombu
import redis
from celery import bootsteps
from kombu.transport import virtual

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import tls_options
from unstuck.tasks.settings import leave, settings
from unstuck.tasks.transport.redis_client import FEW_QUESTIONS, REPLY_WITHIN, takes_writes, unavailable
from unstuck.tasks.transport.refusals import EXIT, fit_or_leave, refusal

# Waiting for the broker. Celery's own waits go up to 30 s, and a server that answers and refuses writes (a failover, a
# broken disk, a full memory) counts as one that is back. So Celery connects to it several times a second. Both are
# meant so upstream: this stays.


_has_connected = False  # this process, to a broker


class BrokerConnection(kombu.Connection):  # type: ignore[misc]
    """kombu's connection, with short waits. Who waits for it explicitly gets it once the server takes writes."""

    _to_listen = False

    def _init_params(self, **given: Any) -> None:
        """Verify the server where nobody says otherwise, as for an address that Celery was given with ``-b``."""
        if given["transport"] == "rediss" and not given["ssl"]:
            given["ssl"] = tls_options("rediss://")
        super()._init_params(**given)

    def as_uri(self, *args: Any, **kwargs: Any) -> str:
        """Show an IPv6 address with its brackets; kombu quotes it."""
        uri, host = str(super().as_uri(*args, **kwargs)), self.hostname or ""
        return uri.replace(quote(host, safe=""), f"[{host}]") if ":" in host and "/" not in host else uri

    def get_transport_cls(self) -> Any:
        return _fit_to_fork(super().get_transport_cls())

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the connection; called by Celery's consumer and beat, and by nobody who only sends."""
        waits = {"interval_start": 1.0, "interval_step": 1.0, "interval_max": 5.0}  # seconds between two tries
        self._to_listen = True
        try:
            return super().ensure_connection(*args, **{**waits, **kwargs})
        finally:
            self._to_listen = False

    def ensure(self, obj: Any, fun: Any, errback: Any = None, max_retries: int | None = None, **kwargs: Any) -> Any:
        """Repeat what is sent once, where no number is given, as for Celery's heartbeats for monitors.

        By itself kombu then repeats for ever, without a word, and the loop that sends them receives nothing meanwhile.
        """
        return super().ensure(obj, fun, errback, 1 if max_retries is None else max_retries, **kwargs)

    def _establish_connection(self) -> Any:
        global _has_connected
        try:
            made = super()._establish_connection()
        except redis.RedisError as error:
            # A program that starts; later a certificate may be replaced under one that works.
            if self._to_listen and not _has_connected and (why := refusal(self.as_uri(), error)):
                leave(why, EXIT)
            raise
        _has_connected = True
        if self._to_listen:
            self._try_a_write(made)
            # Rights may have been taken away, and who consumes nothing must not seem to listen.
            fit_or_leave(settings(), REPLY_WITHIN)
        return made

    def _try_a_write(self, made: Any) -> None:
        """Raises what the server says if it takes no writes now; kombu takes that for a try that failed.

        Each try is a new connection: after a failover the same name may lead to another server.
        """
        channel = made.create_channel(made)
        try:
            with channel.conn_or_acquire() as client:
                takes_writes(client, Keys(settings().prefix))
        except redis.RedisError as error:
            if unavailable(error):
                raise
            # Perhaps this user may not touch this key: the look at its rights will show it.
        finally:
            channel.close()


# A main process that forks. kombu takes a socket out of epoll only after it has closed it. A child that was forked
# meanwhile holds the socket too, so epoll goes on reporting it, under a number that by then is another's. And news of
# the pub/sub connection (``celery inspect``), even if they are false, make kombu read there without an end. Together
# the two hung a worker for ever. Upstream: celery/celery#10502 tells of the second, celery/kombu#954 of a fault like
# the first. Seen with kombu 5.7.0; this may go once kombu unregisters a socket before it closes it, and reads pub/sub
# with a timeout.


@cache
def _fit_to_fork(base: Any) -> Any:
    """The class of a transport as kombu's Redis transport ``base``, or one made of it, fit for a process that forks."""

    class Channel(base.Channel):  # type: ignore[misc]
        def _connparams(self, asynchronous: bool = False) -> Any:
            found = {**super()._connparams(asynchronous), **FEW_QUESTIONS}
            if asynchronous:
                found["connection_class"] = _unregistered_first(found["connection_class"], self)
            return found

        @cached_property
        def subclient(self) -> Any:
            return _read_within(self.socket_timeout, super().subclient)

    return type("Transport", (base,), {"Channel": Channel})


def _unregistered_first(connection: Any, channel: Any) -> Any:
    """The class of a connection of ``channel`` that is taken out of the event loop before it is closed."""

    class Connection(connection):  # type: ignore[misc]
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            # The poller comes from the channel: this class lives longer than the channel, and a reference here would
            # keep each old poller in memory.
            poller = getattr(getattr(channel.connection, "cycle", None), "poller", None)
            if self._sock is not None and poller is not None and os.getpid() == self.pid:  # a child shares the epoll
                poller.unregister(self._sock)
            super().disconnect(*args, **kwargs)

    return Connection


def _read_within(seconds: float | None, pubsub: Any) -> Any:
    """``pubsub``, which is read only where there is something to read, and for ``seconds`` at most (None: no end)."""
    read = pubsub.parse_response

    def parse_response() -> Any:
        if pubsub.connection is None or not pubsub.connection.can_read(timeout=0):
            return None
        return read(block=False, timeout=seconds)

    pubsub.parse_response = parse_response
    return pubsub


# A slot that an acknowledgement takes for ever. kombu frees the slot of a message only once Redis has taken the
# acknowledgement, and Celery notes the error and goes on: a worker with one slot listens no more and looks alive. What
# stays behind in Redis comes back as a second wake-up, much later. Upstream: no report is
# known. Seen with kombu 5.7.0; this may go once its ``QoS.ack`` frees the slot in a ``finally``.


class Acknowledging(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of a Celery worker that frees the slot of a failed acknowledgement; starts again with every connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        channel = parent.task_consumer.channel
        qos, acknowledge = channel.qos, channel.qos.ack

        def ack(delivery_tag: str) -> None:
            try:
                acknowledge(delivery_tag)
            except channel.connection_errors:
                virtual.QoS.ack(qos, delivery_tag)
                raise

        qos.ack = ack
