"""Stores which problems somebody has acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import cast

import redis

from unstuck.coordinator.model.acknowledgement import Acknowledgement
from unstuck.tasks.protocol.keys import Keys


class Acknowledgements:
    """The acknowledgements of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._key = client, keys.acknowledged

    def all(self) -> dict[str, Acknowledgement]:
        """Return the acknowledgements by id of the problem."""
        texts = cast(Mapping[str, str], self._redis.hgetall(self._key))
        return {id_: Acknowledgement(**json.loads(text)) for id_, text in texts.items()}

    def set(self, problem: str, acknowledgement: Acknowledgement, current: Iterable[str]) -> None:
        """Store an acknowledgement, and forget those of problems that are not ``current``."""
        if stale := self.all().keys() - set(current):
            self._redis.hdel(self._key, *stale)
        self._redis.hset(self._key, problem, json.dumps(asdict(acknowledgement)))
