"""Fix faults in kombu and Celery that stop a worker for ever, each with the last affected version.

Wake-ups are sent without these waits: the sweep sends others where one is lost.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache, cached_property
from typing import Any
from urllib.parse import quote

import kombu
import redis
from celery import Celery, bootsteps
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from kombu import pidbox
from kombu.exceptions import InconsistencyError
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import tls_options
from unstuck.tasks.settings import leave, settings
from unstuck.tasks.transport.redis_client import (
    FEW_QUESTIONS,
    REPLY_WITHIN,
    takes_writes,
    unavailable,
)
from unstuck.tasks.transport.refusals import EXIT, fit_or_leave, refusal

log = logging.getLogger(__name__)

# Waiting for the broker. Celery's own waits go up to 30 s, and a server that answers and refuses
# writes (a failover, a broken disk, a full memory) counts as one that is back. So Celery connects
# to it several times a second. Both are meant so upstream: this stays.


_has_connected = False  # this process, to a broker


class BrokerConnection(kombu.Connection):  # type: ignore[misc]
    """kombu's connection, with short waits.

    Who waits for it explicitly gets it once the server takes writes.
    """

    _to_listen = False

    def _init_params(self, **options: Any) -> None:
        """Verify the server by default, as for an address given with ``-b``."""
        if options["transport"] == "rediss" and not options["ssl"]:
            options["ssl"] = tls_options("rediss://")
        super()._init_params(**options)

    def as_uri(self, *args: Any, **kwargs: Any) -> str:
        """Show an IPv6 address with its brackets; kombu quotes it."""
        uri, host = str(super().as_uri(*args, **kwargs)), self.hostname or ""
        return (
            uri.replace(quote(host, safe=""), f"[{host}]")
            if ":" in host and "/" not in host
            else uri
        )

    def get_transport_cls(self) -> Any:
        return _fit_to_fork(super().get_transport_cls())

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the connection. Celery's consumer and beat call it; senders do not."""
        waits = {
            "interval_start": 1.0,
            "interval_step": 1.0,
            "interval_max": 5.0,
        }  # seconds between two tries
        self._to_listen = True
        try:
            return super().ensure_connection(*args, **{**waits, **kwargs})
        finally:
            self._to_listen = False

    def ensure(
        self, obj: Any, fun: Any, errback: Any = None, max_retries: int | None = None, **kwargs: Any
    ) -> Any:
        """Retry once by default, as for Celery's heartbeats for monitors.

        By itself kombu then repeats for ever, without a word, and the loop that sends them receives
        nothing meanwhile.
        """
        return super().ensure(
            obj, fun, errback, 1 if max_retries is None else max_retries, **kwargs
        )

    def _establish_connection(self) -> Any:
        global _has_connected
        try:
            connection = super()._establish_connection()
        except redis.RedisError as error:
            # A program that starts; later a certificate may be replaced under one that works.
            if self._to_listen and not _has_connected and (why := refusal(self.as_uri(), error)):
                leave(why, EXIT)
            raise
        _has_connected = True
        if self._to_listen:
            self._try_a_write(connection)
            # Rights may have been taken away, and who consumes nothing must not seem to listen.
            fit_or_leave(settings(), REPLY_WITHIN)
        return connection

    def _try_a_write(self, connection: Any) -> None:
        """Raise the server's error if it takes no writes now, so that kombu tries again.

        Each try is a new connection: after a failover the same name may lead to another server.
        """
        channel = connection.create_channel(connection)
        try:
            with channel.conn_or_acquire() as client:
                takes_writes(client, Keys(settings().prefix))
        except redis.RedisError as error:
            if unavailable(error):
                raise
            # Perhaps this user may not touch this key: the look at its rights will show it.
        finally:
            channel.close()


# A main process that forks. kombu takes a socket out of epoll only after it has closed it. A child
# that was forked meanwhile holds the socket too, so epoll goes on reporting it, under a number that
# by then is another's. And news of the pub/sub connection (``celery inspect``), even if they are
# false, make kombu read there without an end. Together the two hung a worker for ever. Upstream:
# celery/celery#10502 tells of the second, celery/kombu#954 of a fault like the first. Seen with
# kombu 5.7.0; this may go once kombu unregisters a socket before it closes it, and reads pub/sub
# with a timeout.
#
# A channel of a closed connection. When Redis goes away, kombu closes the channels of a connection
# one by one, stops at the first that fails, and clears the connection. Celery then closes it again:
# the remaining channels restore their unacknowledged messages through the cleared connection. The
# AttributeError ends the worker; a connection error is ignored there, as in a late acknowledgement.
# The messages return after the visibility timeout. Upstream: no report is known. Seen with kombu
# 5.7.0; this may go once ``Transport.close_connection`` closes all channels.


@cache
def _fit_to_fork(base: Any) -> Any:
    """Return the transport class ``base``, or a subclass fit for a process that forks."""

    class Transport(base):  # type: ignore[misc]
        def _deliver(self, message: Any, queue: str) -> None:
            try:
                super()._deliver(message, queue)
            except Exception as error:
                if _is_of_broker(error):
                    raise
                _told_dropped(error, f"on {queue}", message)
                self._forget(message)

        def _forget(self, message: Any) -> None:
            """Acknowledge a message of which no more may be known than that it is none."""
            for channel in self.channels:
                with suppress(LookupError, TypeError):
                    tag = message["properties"]["delivery_tag"]
                    channel.qos.get(tag)
                    channel.qos.ack(tag)

    Transport.Channel = _fork_safe_channel(base.Channel)
    return Transport


def _fork_safe_channel(base: Any) -> Any:
    class ForkSafeChannel(base):  # type: ignore[misc]
        QoS = _restoring_qos(base.QoS)

        def _connparams(self, asynchronous: bool = False) -> Any:
            if getattr(self.connection, "client", None) is None:
                raise redis.ConnectionError("the connection of this channel is closed")
            params = {**super()._connparams(asynchronous), **FEW_QUESTIONS}
            if asynchronous:
                params["connection_class"] = _unregistered_first(params["connection_class"], self)
            return params

        @cached_property
        def client(self) -> Any:
            return _messages_alone(super().client)

        @cached_property
        def subclient(self) -> Any:
            return _read_within(self.socket_timeout, super().subclient)

    return ForkSafeChannel


def _restoring_qos(base: Any) -> Any:
    class RestoringQoS(base):  # type: ignore[misc]
        def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
            try:
                super().restore_by_tag(tag, client, leftmost)
            except Exception as error:
                if _is_of_broker(error):
                    raise
                _told_dropped(error, "among the unacknowledged ones", self._raw(tag))
                self._remove_from_indices(tag).execute()

        def _raw(self, tag: Any) -> Any:
            with self.channel.conn_or_acquire() as client:
                return client.hget(self.unacked_key, tag)

    return RestoringQoS


def _unregistered_first(connection: Any, channel: Any) -> Any:
    """Return the connection class of ``channel`` that leaves the event loop before it closes."""

    class UnregisteringConnection(connection):  # type: ignore[misc]
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            # The poller comes from the channel: this class lives longer than the channel, and a
            # reference here would keep each old poller in memory.
            poller = getattr(getattr(channel.connection, "cycle", None), "poller", None)
            if (
                self._sock is not None and poller is not None and os.getpid() == self.pid
            ):  # a child shares the epoll
                poller.unregister(self._sock)
            super().disconnect(*args, **kwargs)

    return UnregisteringConnection


def _read_within(seconds: float | None, pubsub: Any) -> Any:
    """Read ``pubsub`` only if data is available, within ``seconds`` (None: no limit)."""
    read = pubsub.parse_response

    def parse_response() -> Any:
        if pubsub.connection is None or not pubsub.connection.can_read(timeout=0):
            return None
        reply = read(block=False, timeout=seconds)
        is_message = reply and bytes_to_str(reply[0]).endswith("message")
        return reply if not is_message or _readable(reply[-1], bytes_to_str(reply[-2])) else None

    pubsub.parse_response = parse_response
    return pubsub


# A message that is none. kombu reads JSON, and Celery its fields, where no handler of a wrong
# message is called: the error ends the worker, and a KeyError is taken for a lost connection. One
# that lies among the unacknowledged ones is an error at each look, and those behind it never come
# back. Upstream: celery/celery#7975 and celery/kombu#2421 are open. Seen with kombu 5.7.0 and
# Celery 5.7.0; this may go once both drop whatever they cannot read.

MAX_BYTES = 64 * 1024 * 1024  # of one message; far above what a job may have
MAX_LEVELS = 100  # of lists and mappings in each other; a spec may have 40
_SHOWN = 200  # characters of a message in the log


def _messages_alone(client: Any) -> Any:
    """``client``, whose BRPOP answers with what is JSON alone, and else as if nothing had come."""
    read = client.parse_response

    def parse_response(connection: Any, command: str, **options: Any) -> Any:
        reply = read(connection, command, **options)
        return (
            reply
            if command != "BRPOP" or not reply or _readable(reply[1], bytes_to_str(reply[0]))
            else None
        )

    client.parse_response = parse_response
    return client


def _readable(raw: Any, queue: str) -> bool:
    """False, and told in the log, if ``raw``, which came on ``queue``, is too large or no JSON."""
    try:
        if isinstance(raw, bytes | str):  # else the number of an answer
            if len(raw) > MAX_BYTES:
                raise ValueError(f"{len(raw):,} bytes are more than {MAX_BYTES:,}")
            loads(bytes_to_str(raw))
        return True
    except Exception as error:  # noqa: BLE001 - kombu makes objects of some values
        _told_dropped(error, f"on {queue}", raw)
        return False


def _told_dropped(error: Exception, where: str, message: Any) -> None:
    shown = repr(message[: 2 * _SHOWN] if isinstance(message, bytes | str) else message)
    log.error(
        "a message %s is none that Celery can read, and is dropped: %s: %s. It begins with %s",
        where,
        type(error).__name__,
        str(error)[:_SHOWN],
        shown[:_SHOWN],
    )


class CheckedRequest(Request):  # type: ignore[misc]
    """A task message, refused where Celery or its pool would fail later and block its slot."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        stamped = self.stamped_headers
        if not isinstance(stamped, list) or not all(
            isinstance(text, str) for text in (self.id, self.name, *stamped)
        ):
            raise InvalidTaskError(
                "the id and the name of a task are texts, and its stamped headers a list of texts"
            )
        args, named, after = self._payload
        if not (
            isinstance(args, list | tuple) and isinstance(named, dict) and isinstance(after, dict)
        ):
            raise InvalidTaskError(
                "the body of a task is a list of arguments, a mapping of them, and another mapping"
            )
        if any(after.values()):
            raise InvalidTaskError(
                "tasks of Unstuck have no result, and nothing that follows them: no link, no chain"
            )
        if _nested(self.request_dict, MAX_LEVELS):  # it is pickled for a process of the pool
            raise InvalidTaskError(f"nested more than {MAX_LEVELS} levels deep")
        # A limit would end a runner in the middle of an attempt, whose time is its watchdog's.
        self.time_limits = (None, None)


class ControlNode(pidbox.Node):  # type: ignore[misc]
    """Receives ``celery inspect`` commands, and drops malformed ones, which would break Celery."""

    def handle_message(self, body: Any, message: Any = None) -> Any:
        try:
            return super().handle_message(body, message)
        except Exception as error:
            if _is_of_broker(error):
                raise
            _told_dropped(error, "on the channel of celery control", body)


def check_requests(app: Celery) -> None:
    """Use these classes for tasks and commands in workers of ``app``."""
    app.Task.Request = CheckedRequest
    app.control.mailbox.node_cls = ControlNode


def _nested(value: Any, levels: int) -> bool:
    """True if ``value``, made of what JSON can say, has more ``levels`` than these."""
    parts = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return levels < 0 or any(_nested(part, levels - 1) for part in parts)


def _is_of_broker(error: Exception) -> bool:
    """True for an error of the connection or the server, which is no fault of the message."""
    is_of_redis = isinstance(error, redis.RedisError) and not isinstance(error, redis.DataError)
    return is_of_redis or isinstance(error, OSError | InconsistencyError)


# A place in the prefetch that an acknowledgement takes for ever. kombu frees the place of a message
# only once Redis has taken the acknowledgement, and Celery notes the error and goes on: a worker
# with one place listens no more and looks alive. What stays behind in Redis comes back as a second
# wake-up, much later. Upstream: no report is known. Seen with kombu 5.7.0; this may go once its
# ``QoS.ack`` frees the place in a ``finally``.


class Acknowledging(bootsteps.StartStopStep):  # type: ignore[misc]
    """A worker step that frees the slot of a failed acknowledgement, at each connection."""

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
