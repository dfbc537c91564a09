"""The cancel channel: tells a watchdog at once that a job wants something of its runners.

Pub/sub may lose every message; the next renewal brings the same instruction a little later.
"""

from __future__ import annotations

import logging
from typing import Any

import redis

from unstuck.tasks.protocol.keys import Keys

log = logging.getLogger(__name__)


class CancelChannel:
    """Follows one job at a time, on a connection of its own.

    An error ends that until the next attempt begins.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._pubsub: Any = None
        self._job: str | None = None

    def follow(self, job: str) -> None:
        if job == self._job:
            return
        try:
            if self._pubsub is None:
                self._pubsub = self._client.pubsub(  # type: ignore[no-untyped-call]
                    ignore_subscribe_messages=True
                )
            else:
                self._pubsub.unsubscribe()
            self._pubsub.subscribe(self._keys.cancel(job))
            self._job = job
        except redis.RedisError as error:
            self._close(error)

    def socket(self) -> Any:
        """The socket, which is readable when there is a message; None while no job is followed."""
        return getattr(getattr(self._pubsub, "connection", None), "_sock", None)

    def received(self) -> bool:
        """Take what has arrived; True if the job wants something, or if the connection was lost.

        Redis may then have been restarted, or rolled back to before this attempt was claimed: it is
        time to renew.
        """
        has_news, held = False, self.socket()
        try:
            while self.socket() is not None:
                message = self._pubsub.get_message(timeout=0.0)
                if message is not None:
                    has_news |= message["type"] == "message"
                # redis-py also returns None for an answer to a subscription or a ping. A message
                # behind it may be in the buffer, for which the socket does not become readable.
                elif not self._pubsub.connection.can_read(timeout=0):
                    # A changed socket means that redis-py has reconnected by itself.
                    return has_news or self.socket() is not held
        except redis.RedisError as error:
            self._close(error)
            return True
        return has_news

    def _close(self, error: redis.RedisError) -> None:
        log.warning("instructions come with renewals only, until the next attempt: %s", error)
        if self._pubsub is not None:
            self._pubsub.close()
        self._pubsub, self._job = None, None
