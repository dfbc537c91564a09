"""The staging index: the jobs that have ended, where their files lie, and when the staging collector looks next.

The commit that ends a job adds it, and it leaves when nothing of it may ever be removed any more. The index outlives
the job's record, because the last look comes after the record has expired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, cast

import redis

from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.status import TERMINAL, Status
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script

MARGIN = 60.0  # seconds on top, for clocks, slow scripts and slow kills


@dataclass(frozen=True, slots=True)
class Staged:
    """Staging of a job that has ended.

    Attributes:
        base: head of the warehouse log when the job began; no entry up to it names the job's folders.
        forget_at: when the job's retention is over, seconds by the clock of Redis.
    """

    job: str
    warehouse: str
    warehouse_id: str
    base: int
    forget_at: float


@dataclass(frozen=True, slots=True)
class Retries:
    """The staging of other jobs that retries hold.

    Attributes:
        of: jobs with a retry, or a retry of a retry, that has not ended: it may adopt any of their folders.
        folders: staging folders that count in some retry, ended or not.
    """

    of: frozenset[str]
    folders: frozenset[str]


def staging_record(job: JobRecord, released_after: float) -> dict[str, Any] | None:
    """The entry that the commit that ends ``job`` adds to the index; None if the job has no warehouse."""
    if not job.warehouse or not job.warehouse_id:
        return None
    known = {"warehouse": job.warehouse, "warehouse_id": job.warehouse_id, "base": job.base or 0}
    return {"after": released_after + MARGIN, **known}


class StagingIndex:
    """The index in one Redis. ``client`` must decode responses. Every call may raise redis.RedisError."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys
        self._take = Script(client, keys, __package__, "take_staging")

    def take(self, now: float, limit: int, term: float) -> list[Staged]:
        """Jobs to look at, the most overdue first; each is given out again after ``term`` seconds."""
        taken = self._take(time=now, most=limit, again_at=now + term)
        return [_read(job, json.loads(text)) for job, text in taken]

    def later(self, job: str, at: float) -> None:
        """Look at ``job`` again at ``at``."""
        self._redis.zadd(self._keys.staging_index, {job: at}, xx=True)

    def add(self, staged: Staged) -> None:
        """Have the staging of something that is no job collected, once its time has come."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.staged, staged.job, json.dumps(asdict(staged)))
            pipe.zadd(self._keys.staging_index, {staged.job: staged.forget_at + MARGIN})
            pipe.execute()

    def done(self, job: str) -> None:
        """Drop ``job``: nothing of it may ever be removed any more."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys.staging_index, job)
            pipe.hdel(self._keys.staged, job)
            pipe.execute()

    def retries(self) -> Retries:
        """The staging that all retries hold that are not forgotten."""
        known = cast(dict[str, str], self._redis.hgetall(self._keys.retries))
        going: set[str] = set()
        folders: set[str] = set()
        for retry in known:
            keys = self._keys.of(retry)
            status = self._redis.hget(keys.job, "status")
            records = [GroupRecord.readable(text) for text in cast(list[str], self._redis.hvals(keys.groups))]
            # A damaged record does not say what it holds, so everything that it could have adopted stays.
            if (status is not None and status not in TERMINAL) or None in records:
                going.update(_line(retry, known))
            folders.update(record.staging for record in records if record is not None and record.staging)
        return Retries(frozenset(going), frozenset(folders))

    def reading(self, warehouse_id: str) -> tuple[int, str] | None:
        """The oldest version of a warehouse that an open job may read, and that job; None if no job is open there."""
        oldest: tuple[int, str] | None = None
        for job in cast(list[str], self._redis.zrange(self._keys.due, 0, -1)):
            fields = cast(dict[str, str], self._redis.hgetall(self._keys.of(job).job))
            if fields.get("warehouse_id") == warehouse_id and fields.get("status") not in TERMINAL:
                versions = filter(None, (int(fields.get("base") or 0), *_versions_named(fields.get("spec", ""))))
                if first := min(versions, default=0):  # at version 0 there is nothing to read
                    oldest = min(oldest or (first, job), (first, job))
        return oldest

    def needed(self) -> Callable[[str], bool]:
        """Whether a job may need the attempt folder of a file: one that is open, is retried, or may be retried.

        What retries hold is read now, and the status of each job when its first file is asked for.
        """
        retries = self.retries()

        @cache
        def may_be_adopted(job: str) -> bool:
            status = self._redis.hget(self._keys.of(job).job, "status")
            return job in retries.of or (status is not None and status != Status.FINISHED)

        def asked(path: str) -> bool:
            _staging, job, group, attempt, *_ = path.split("/")
            return f"{_staging}/{job}/{group}/{attempt}" in retries.folders or may_be_adopted(job)

        return asked


def _line(retry: str, known: dict[str, str]) -> Iterator[str]:
    """The job that is retried, the one that it was a retry of, and so on: a retry adopts from all of them."""
    while (job := known.get(retry, "")) and job != retry:
        yield job
        retry = job


def _versions_named(spec: str) -> Iterator[int]:
    """The versions that a stored spec names in ``inputs:``. None of a damaged one: its job cannot run."""
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        for group in json.loads(spec)["groups"]:
            yield from (wanted["version"] for wanted in group.get("inputs", {}).values() if wanted.get("version"))


def _read(job: str, known: dict[str, Any]) -> Staged:
    return Staged(
        job, str(known["warehouse"]), str(known["warehouse_id"]), int(known["base"]), float(known["forget_at"])
    )
