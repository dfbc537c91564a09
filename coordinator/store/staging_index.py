"""The staging index: the jobs that have ended, where their files lie, and when the staging collector looks next.

The commit that ends a job adds it, and it leaves when nothing of it may ever be removed any more. The index outlives
the job's record, because the last look comes after the record has expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import redis

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import TERMINAL
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.staging import MARGIN, Staged, Staging


def staging_record(job: JobRecord, released_after: float) -> dict[str, Any] | None:
    """The entry that the commit that ends ``job`` adds to the index; None if the job has no warehouse."""
    if not job.warehouse or not job.warehouse_id:
        return None
    known = {"warehouse": job.warehouse, "warehouse_id": job.warehouse_id, "base": job.base or 0}
    return {"after": released_after + MARGIN, **known}


class StagingIndex(Staging):
    """The index in one Redis. ``client`` must decode responses. Every call may raise redis.RedisError."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self._take = Script(client, keys, __package__, "take_staging")

    def take(self, now: float, limit: int, term: float) -> list[Staged]:
        """Jobs to look at, the most overdue first; each is given out again after ``term`` seconds."""
        taken = self._take(time=now, most=limit, again_at=now + term)
        return [_read(job, json.loads(text)) for job, text in taken]

    def later(self, job: str, at: float) -> None:
        """Look at ``job`` again at ``at``."""
        self._redis.zadd(self._keys.staging_index, {job: at}, xx=True)

    def done(self, job: str) -> None:
        """Drop ``job``: nothing of it may ever be removed any more."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys.staging_index, job)
            pipe.hdel(self._keys.staged, job)
            pipe.execute()

    def begin_vacuum(self, warehouse_id: str, oldest: int, *, dry_run: bool = False) -> tuple[int, str] | None:
        """Let no job be stored any more that would read a version before ``oldest``, and look at those that are stored.

        With ``dry_run`` it only looks. Returns the oldest version that an open job may read, and that job; None if no
        job is open there.
        """
        if not dry_run:
            self._redis.zadd(self._keys.vacuums, {warehouse_id: oldest}, gt=True)
        first: tuple[int, str] | None = None
        for job in cast(list[str], self._redis.zrange(self._keys.due, 0, -1)):
            fields = cast(dict[str, str], self._redis.hgetall(self._keys.of(job).job))
            if fields.get("warehouse_id") == warehouse_id and fields.get("status") not in TERMINAL:
                versions = filter(None, (int(fields.get("base") or 0), *_versions_named(fields.get("spec", ""))))
                if read := min(versions, default=0):  # at version 0 there is nothing to read
                    first = min(first or (read, job), (read, job))
        return first


def _versions_named(spec: str) -> Iterator[int]:
    """The versions that a stored spec names in ``inputs:``. None of a damaged one: its job cannot run."""
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        for group in json.loads(spec)["groups"]:
            yield from (wanted["version"] for wanted in group.get("inputs", {}).values() if wanted.get("version"))


def _read(job: str, known: dict[str, Any]) -> Staged:
    return Staged(
        job, str(known["warehouse"]), str(known["warehouse_id"]), int(known["base"]), float(known["forget_at"])
    )
