"""The staging index: ended jobs, the place of their files, and when the collector looks next.

The commit that ends a job adds it. It leaves when no file of it can be removed any more. The index
outlives the job's record, because the last look comes after the record has expired.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import redis

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import TERMINAL, Status
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script
from unstuck.tasks.protocol.staging import MARGIN, Staged, Staging

_AT_ONCE = 200  # jobs whose records are read in one round trip


def staging_record(job: JobRecord, released_after: float) -> dict[str, Any] | None:
    """Return the index entry of an ended job; None if the job has no warehouse."""
    if not job.warehouse or not job.warehouse_id:
        return None
    fields = {"warehouse": job.warehouse, "warehouse_id": job.warehouse_id, "base": job.base or 0}
    return {"after": released_after + MARGIN, **fields}


class StagingIndex(Staging):
    """The index in one Redis. ``client`` must decode responses.

    Every call may raise redis.RedisError.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self._take = Script(client, keys, __package__, "take_staging")

    def take(self, now: float, limit: int, term: float) -> list[Staged]:
        """Return jobs to look at, the most overdue first.

        Each is due again after ``term`` seconds.
        """
        taken = self._take(time=now, most=limit, again_at=now + term)
        return [_read(job, json.loads(text)) for job, text in taken]

    def later(self, job: str, at: float) -> None:
        """Look at ``job`` again at ``at``."""
        self._redis.zadd(self._keys.staging_index, {job: at}, xx=True)

    def done(self, job: str) -> None:
        """Remove ``job`` from the index: none of its files can be removed any more."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys.staging_index, job)
            pipe.hdel(self._keys.staged, job)
            pipe.execute()

    def count_vacuum(self, warehouse_id: str) -> None:
        """Let no job be stored any more that looked at this warehouse before."""
        self._redis.zincrby(self._keys.vacuums, 1, warehouse_id)

    @contextmanager
    def hold(self, reader: str, warehouse_id: str, version: int, until: float) -> Iterator[None]:
        """Keep ``version`` from vacuums within the block.

        A vacuum that began before says in the log which versions it removes: look there within the
        block.

        Args:
            until: seconds since the epoch at which the hold ends if this process dies.
        """
        self._redis.hset(self._keys.holds, reader, json.dumps([warehouse_id, version, until]))
        try:
            yield
        finally:
            self._redis.hdel(self._keys.holds, reader)

    def _held(self, warehouse_id: str) -> Iterator[tuple[int, str]]:
        for reader, text in cast(dict[str, str], self._redis.hgetall(self._keys.holds)).items():
            place, version, until = json.loads(text)
            if until < time.time():
                self._redis.hdel(self._keys.holds, reader)
            elif place == warehouse_id:
                yield version, reader

    def oldest_read(self, warehouse_id: str, removed: int) -> tuple[int, str] | None:
        """Return the oldest version that a job or a restore may read, and the name of its reader.

        An open job reads the newest version at its submit, and the versions that its spec names.
        The retry of an ended job reads only the latter, unless a vacuum has ``removed`` them.
        Returns None if nothing is read.
        """
        statuses = [self._keys.status(status) for status in Status if status is not Status.FINISHED]
        jobs = cast(list[str], self._redis.zunion([self._keys.due, *statuses]))
        versions_read: list[tuple[int, str]] = [*self._held(warehouse_id)]
        for start in range(0, len(jobs), _AT_ONCE):
            batch = jobs[start : start + _AT_ONCE]
            with self._redis.pipeline(transaction=False) as pipe:
                for job in batch:
                    pipe.hmget(self._keys.of(job).job, ["warehouse_id", "status", "base", "spec"])
                answers = cast(list[list[str | None]], pipe.execute())
            for job, (place, status, base, spec) in zip(batch, answers, strict=True):
                if place == warehouse_id:
                    versions = _versions_read(status, base, spec, removed)
                    versions_read += [(version, job) for version in versions]
        return min(versions_read, default=None)


def _versions_read(
    status: str | None, base: str | None, spec: str | None, removed: int
) -> list[int]:
    """Return the versions that a job may read; at version 0 there is nothing to read."""
    named = [version for version in _versions_named(spec or "") if version]
    if status in TERMINAL:
        return [version for version in named if version >= removed]
    return [*named, int(base)] if base and base != "0" else named


def _versions_named(spec: str) -> Iterator[int]:
    """Yield the versions that ``inputs:`` of a stored spec name; a damaged spec names none."""
    if '"version"' not in spec:
        return
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        for group in json.loads(spec)["groups"]:
            for dataset_input in group.get("inputs", {}).values():
                if isinstance(version := dataset_input.get("version"), int):
                    yield version


def _read(job: str, fields: dict[str, Any]) -> Staged:
    return Staged(
        job,
        str(fields["warehouse"]),
        str(fields["warehouse_id"]),
        int(fields["base"]),
        float(fields["forget_at"]),
    )
