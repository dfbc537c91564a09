"""kombu's Redis transport for a main process that forks: it must never block in it.

kombu has two faults that together hung a worker for ever, a while after a connection had gone dead without a word. It
takes a socket out of epoll only after it has closed it; but a child that was forked meanwhile holds that socket too, so
epoll goes on reporting it, under a number that by then is another's, and nobody can take it out any more. And news of
its pub/sub connection (``celery inspect`` and ``control``) makes it read there without an end, even if they are false.

What a main process that hangs all the same comes to stands in ``tasks.transport.stall_detector``.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Any


@cache
def fit_to_fork(base: Any) -> Any:
    """The class of a transport as kombu's Redis transport ``base``, or one made of it, with that repaired."""

    class Channel(base.Channel):  # type: ignore[misc]
        def _connparams(self, asynchronous: bool = False) -> Any:
            found = super()._connparams(asynchronous)
            if asynchronous:
                found["connection_class"] = _leaving(found["connection_class"], self)
            return found

        @cached_property
        def subclient(self) -> Any:
            return _read_within(self.socket_timeout, super().subclient)

    return type("Transport", (base,), {"Channel": Channel})


def _leaving(connection: Any, channel: Any) -> Any:
    """The class of a connection of ``channel`` that is taken out of the event loop before it is closed."""

    class Connection(connection):  # type: ignore[misc]
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            # By way of the channel, which lets go of it when it is closed: a class outlives its last use for long, and
            # with it each poller would.
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
