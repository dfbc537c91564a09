"""Fix faults in kombu and Celery that stop a worker for ever, each with the last affected version.

Wake-ups are sent without these waits: the sweep sends others where one is lost.
"""

from __future__ import annotations

import logging
import os
from base64 import b64decode
from datetime import datetime
from functools import cache, cached_property
from typing import Any, Literal, NotRequired
from urllib.parse import quote

import kombu
import redis
from celery import bootsteps
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

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
        # Seconds between two attempts.
        waits = {"interval_start": 1.0, "interval_step": 1.0, "interval_max": 5.0}
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
        Channel = _fork_safe_channel(base.Channel)

    return Transport


def _fork_safe_channel(base: Any) -> Any:
    class ForkSafeChannel(base):  # type: ignore[misc]
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


def _unregistered_first(connection: Any, channel: Any) -> Any:
    """Return the connection class of ``channel`` that leaves the event loop before it closes."""

    class UnregisteringConnection(connection):  # type: ignore[misc]
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            # The poller comes from the channel: this class lives longer than the channel, and a
            # reference here would keep each old poller in memory.
            poller = getattr(getattr(channel.connection, "cycle", None), "poller", None)
            # A forked child shares the epoll.
            if self._sock is not None and poller is not None and os.getpid() == self.pid:
                poller.unregister(self._sock)
            super().disconnect(*args, **kwargs)

    return UnregisteringConnection


def _read_within(seconds: float | None, pubsub: Any) -> Any:
    """Read ``pubsub`` only if data is available, within ``seconds`` (None: no limit)."""
    read = pubsub.parse_response

    def parse_response() -> Any:
        if pubsub.connection is None or not pubsub.connection.can_read(timeout=0):
            return None
        return read(block=False, timeout=seconds)

    pubsub.parse_response = parse_response
    return pubsub


# A malformed message on a queue. kombu reads JSON, and Celery its fields, where no handler of a
# wrong message is called: the error ends the worker, a KeyError counts as a lost connection, or an
# odd argument keeps a slot of the pool for ever. So each message is checked when it comes off its
# queue, and a malformed one is logged and dropped. Upstream: celery/celery#7975 and
# celery/kombu#2421 are open. Seen with kombu 5.7.0 and Celery 5.7.0; this may go once both drop
# what they cannot read.

MAX_BYTES = 64 * 1024 * 1024  # of one message; far above what a job may have
MAX_LEVELS = 100  # of lists and mappings in each other; a spec may have 40
_REPLIES = ".reply.celery.pidbox"  # queues with the answers to `celery inspect`
_SHOWN = 200  # characters of a message in the log


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True)


class _Headers(_Checked):
    """Of Celery's second protocol; the first has all in the body."""

    task: str
    id: str
    stamped_headers: list[str] | None = None
    compression: None = None
    eta: datetime | None = None
    expires: datetime | float | None = None
    group: str | None = None
    retries: int | None = None
    root_id: str | None = None
    parent_id: str | None = None
    shadow: str | None = None
    timelimit: tuple[float | None, float | None] | None = None


class _NoHeaders(_Checked):
    model_config = ConfigDict(extra="forbid")


class _DeliveryInfo(_Checked):
    exchange: str
    routing_key: str


class _Properties(_Checked):
    body_encoding: Literal["base64"]
    delivery_info: _DeliveryInfo
    delivery_tag: str
    priority: int | None = None


class _Message(_Checked):
    body: str
    encoding: Literal["utf-8"] = Field(validation_alias="content-encoding")
    kind: Literal["application/json"] = Field(validation_alias="content-type")
    headers: _Headers | _NoHeaders
    properties: _Properties


class _FirstBody(TypedDict):
    task: str
    id: str
    args: NotRequired[list[Any]]
    kwargs: NotRequired[dict[str, Any]]


_BODY: TypeAdapter[Any] = TypeAdapter(tuple[list[Any], dict[str, Any], dict[str, None]])
_FIRST_BODY: TypeAdapter[Any] = TypeAdapter(_FirstBody)


def check_message(raw: bytes | str) -> None:
    """Check a message of a Celery task, as it is on its queue.

    Raises: ValueError, RecursionError, TypeError: it is malformed.
    """
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{len(raw):,} bytes are more than {MAX_BYTES:,}")
    loads(bytes_to_str(raw))  # kombu makes objects of some values
    message = _Message.model_validate_json(raw)
    body = b64decode(message.body, validate=True)
    if _levels(loads(bytes_to_str(body))) > MAX_LEVELS:  # it is pickled for a process of the pool
        raise ValueError(f"nested more than {MAX_LEVELS} levels deep")
    checked = _BODY if isinstance(message.headers, _Headers) else _FIRST_BODY
    checked.validate_json(body, strict=True)


def _is_task(raw: bytes | str, queue: str) -> bool:
    """Return whether a message from ``queue`` is well formed; log it if it is not."""
    try:
        check_message(raw)
    except Exception as error:  # noqa: BLE001 - kombu makes objects of some values
        _log_dropped(error, queue, raw)
        return False
    return True


def _levels(value: Any) -> int:
    """Return how many lists and mappings are in each other. Raises: RecursionError."""
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_levels, parts), default=0) if isinstance(value, dict | list) else 0


def _messages_alone(client: Any) -> Any:
    """Return ``client``, whose BRPOP answers to a malformed message as if nothing had come."""
    read = client.parse_response

    def parse_response(connection: Any, command: str, **options: Any) -> Any:
        reply = read(connection, command, **options)
        if command != "BRPOP" or not reply:
            return reply
        queue, raw = bytes_to_str(reply[0]), reply[1]
        return reply if queue.endswith(_REPLIES) or _is_task(raw, queue) else None

    client.parse_response = parse_response
    return client


def _log_dropped(error: Exception, queue: str, raw: bytes | str) -> None:
    log.error(
        "a malformed message on %s is dropped: %s: %s. It begins with %s",
        queue,
        type(error).__name__,
        " ".join(str(error).split())[:_SHOWN],
        repr(raw[: 2 * _SHOWN])[:_SHOWN],
    )


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
