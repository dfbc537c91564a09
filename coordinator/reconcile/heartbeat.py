"""Presence: what a coordinator notes for people, about once a second, and forgetting who is long silent.

It notes itself, and since when the oldest message of each queue has lain there.

Nothing is decided from it, so nothing here may stop a coordinator: one that cannot note itself goes on.
"""

from __future__ import annotations

import json
import logging

import redis

from unstuck.coordinator.reconcile.queue_age import Standing
from unstuck.coordinator.spec.checks import CONTROL_QUEUE
from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.warehouse.probe import Lookout

log = logging.getLogger(__name__)
EVERY = 1.0  # seconds between two notes of one coordinator
EVERY_LOOK = 5.0  # seconds between two looks at the queues
FORGOTTEN = 3600.0  # seconds of silence after which a runner or a coordinator is shown no more


class Presence:
    """One coordinator in the list of the fleet. ``name`` is ``host:pid:word``; ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys, name: str, lookout: Lookout | None = None) -> None:
        """``lookout``: says which warehouse this coordinator sees, if anybody does."""
        self._lookout = lookout
        self._redis = client
        self._keys = keys
        self._name = name
        self._failed = False
        self._release = release_here()
        self._standing = Standing()
        self._looked_at = 0.0

    def note(self, read_ago: float | None, swept_ago: float | None) -> None:
        """Say that this coordinator is here. Never raises for the store's sake.

        Args:
            read_ago: seconds since it last read a worker's report; None: it never did.
            swept_ago: seconds since it last ended a sweep; None: it never did.
        """
        host, pid, _ = self._name.rsplit(":", 2)
        try:
            now = self._now()
            self._look_at_queues(now)
            line = {
                "id": self._name,
                "host": host,
                "pid": int(pid),
                "queues": [CONTROL_QUEUE],
                "read_at": None if read_ago is None else now - read_ago,
                "swept_at": None if swept_ago is None else now - swept_ago,
                "standing": self._standing.since,
                **self._release,
                **(self._lookout.seen(now) if self._lookout is not None else {}),
            }
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(self._keys.coordinators, self._name, json.dumps(line))
                pipe.zadd(self._keys.coordinators_seen, {self._name: now})
                pipe.execute()
            self._failed = False
        except redis.RedisError as error:
            if not self._failed:
                log.warning("this coordinator could not be shown in the fleet; it goes on: %s", error)
            self._failed = True

    def _look_at_queues(self, now: float) -> None:
        """Those that runners listen to, and our own. Raises: redis.RedisError."""
        if 0 <= now - self._looked_at < EVERY_LOOK:
            return
        self._looked_at = now
        described = self._redis.hvals(self._keys.runners)
        queues = sorted({CONTROL_QUEUE, *(queue for line in described for queue in _queues_of(line))})
        with self._redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.lindex(self._keys.queue(queue), -1)  # Celery adds on the left
            oldest = pipe.execute(raise_on_error=False)
        # What is no list is no queue of Celery's, whoever named it.
        found = {queue: text for queue, text in zip(queues, oldest, strict=True) if isinstance(text, str)}
        self._standing = self._standing.after(found, now)

    def leave(self) -> None:
        """Take this coordinator out of the list: it ends in good order. Never raises for the store's sake."""
        try:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.hdel(self._keys.coordinators, self._name)
                pipe.zrem(self._keys.coordinators_seen, self._name)
                pipe.execute()
        except redis.RedisError as error:
            log.warning("this coordinator could not be taken out of the fleet list: %s", error)

    def forget_silent(self) -> int:
        """Drop runners and coordinators that were silent for an hour: they died without a goodbye. Returns how many.

        One that speaks up again at this very moment is back with its next note, a few seconds later.
        """
        forgotten = 0
        try:
            long_ago = self._now() - FORGOTTEN
            for seen, described in (
                (self._keys.runners_seen, self._keys.runners),
                (self._keys.coordinators_seen, self._keys.coordinators),
            ):
                silent = self._redis.zrangebyscore(seen, "-inf", long_ago)
                if silent:
                    with self._redis.pipeline(transaction=True) as pipe:
                        pipe.zrem(seen, *silent)
                        pipe.hdel(described, *silent)
                        pipe.execute()
                    forgotten += len(silent)
        except redis.RedisError as error:
            log.warning("the list of the fleet could not be cleared of the silent: %s", error)
        return forgotten

    def _now(self) -> float:
        """The time of the store, in seconds."""
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)


def _queues_of(line: str | bytes) -> list[str]:
    """Of a runner as it was described; none where that cannot be read, for it may stop nobody."""
    try:
        return list(json.loads(line)["queues"])
    except (ValueError, TypeError, KeyError):
        return []
