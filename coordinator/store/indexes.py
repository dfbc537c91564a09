"""Repairs indexes that have lost jobs, so that each job is decided, listed and forgotten.

Each sweep reads a bounded part of the records: a job that is in no index has no other trace.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import redis

from unstuck.coordinator.errors import Damaged, NewerJob
from unstuck.coordinator.model.state import summary_of
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script

KEYS_LOOKED_AT = 10  # in one piece
KEYS_AFTER_A_LOSS = 1000  # in the piece after one of which something was missing


class Indexes:
    """The indexes in one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys, store: Store) -> None:
        self._redis = client
        self._store = store
        self._keys = keys
        self._record_key = keys.of("\0").job
        self._pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._record_key).replace("\0", "*")
        self._script = Script(client, keys, __package__, "jobs/index_jobs")
        self._cursor, self._count = 0, KEYS_LOOKED_AT

    def repair(self) -> None:
        """Look at the next piece of the keys. Raises: redis.RedisError."""
        self._cursor, keys = self._redis.scan(
            self._cursor, match=self._pattern, count=self._count, _type="hash"
        )
        before, _, after = self._record_key.partition("\0")
        jobs = [key.removeprefix(before).removesuffix(after) for key in cast(list[str], keys)]
        missing, *lineless = self._index(dict.fromkeys(jobs, ""))
        self._index({job: line for job in lineless if (line := self._line(job))})
        self._count = KEYS_AFTER_A_LOSS if missing else KEYS_LOOKED_AT

    def _index(self, lines: dict[str, str]) -> list[Any]:
        change = {"jobs": lines, "job": self._record_key, "status": self._keys.status("")}
        return list(self._script(change=json.dumps(change))) if lines else [0]

    def _line(self, job: str) -> str:
        """Return the line of a job in the list.

        Empty if it is gone or belongs to a newer coordinator.
        """
        try:
            try:
                state = self._store.load(job)
            except Damaged:
                state = self._store.load(job, bare=True)
        except NewerJob:
            return ""
        return "" if state is None else summary_of(state)
