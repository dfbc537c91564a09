"""The connection to the broker, of processes that listen or fire: waited for as long as it takes, never given up.

Celery's own waits would do it, but for three things. Its steps go up to 30 s, so that a fleet would be back long after
its broker. A server that answers and refuses writes (a failover, a broken disk, a full memory) counts as well, and
Celery would connect to it again and again, several times a second. And it gives up after a hundred tries, which ends a
worker with all that it runs; that is a setting, in ``tasks.transport.celery_app``.

It must not touch connections that only send: nobody may wait for ever to send a hint, which may be lost anyway.
"""

from __future__ import annotations

from typing import Any

import kombu
import redis

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import settings
from unstuck.tasks.transport.kombu_transport import fit_to_fork
from unstuck.tasks.transport.redis_client import takes_writes, unavailable

FIRST_WAIT, LONGER_EACH_TIME, LONGEST_WAIT = 1.0, 1.0, 5.0  # seconds between two tries


class BrokerConnection(kombu.Connection):  # type: ignore[misc]
    """kombu's, with waits that end soon. Who waits for it explicitly gets it once the server takes writes."""

    _to_listen = False

    def get_transport_cls(self) -> Any:
        return fit_to_fork(super().get_transport_cls())

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the connection; called by Celery's consumer and beat, and by nobody who only sends."""
        steps = {"interval_start": FIRST_WAIT, "interval_step": LONGER_EACH_TIME, "interval_max": LONGEST_WAIT}
        self._to_listen = True
        try:
            return super().ensure_connection(*args, **{**steps, **kwargs})
        finally:
            self._to_listen = False

    def _establish_connection(self) -> Any:
        made = super()._establish_connection()
        if self._to_listen:
            self._try_a_write(made)
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
            # Not its trouble but ours, perhaps a user who may not touch this key: the real commands will tell.
        finally:
            channel.close()
