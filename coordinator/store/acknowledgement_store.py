"""Stores which problems somebody has acknowledged."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import cast

import redis
from pydantic import TypeAdapter, ValidationError

from unstuck.coordinator.model.acknowledgement import Acknowledgement
from unstuck.tasks.protocol.keys import Keys

log = logging.getLogger(__name__)
_STORED: TypeAdapter[Acknowledgement] = TypeAdapter(Acknowledgement)


class Acknowledgements:
    """The acknowledgements of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._key = client, keys.acknowledged

    def all(self) -> dict[str, Acknowledgement]:
        """Return the acknowledgements by id of the problem.

        An entry that cannot be read is left out, so its problem counts.
        """
        texts = cast(Mapping[str, str], self._redis.hgetall(self._key))
        entries = {}
        for problem, text in texts.items():
            try:
                entries[problem] = _STORED.validate_json(text)
            except ValidationError as error:
                log.warning("the acknowledgement of %s cannot be read: %s", problem, error)
        return entries

    def set(self, problem: str, entry: Acknowledgement) -> None:
        """Store an acknowledgement, and remove those that have expired when it is made."""
        expired = [each for each, other in self.all().items() if other.expired(entry.at)]
        if expired:
            self._redis.hdel(self._key, *expired)
        self._redis.hset(self._key, problem, json.dumps(asdict(entry)))
