"""Tell which staging folders jobs still need, and hand others to the staging collector."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import cast

import redis

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Done

MARGIN = 60.0  # seconds on top, for clocks, slow scripts and slow kills
FINISHED = "FINISHED"  # the status of a job that nobody retries
SUCCEEDED = "SUCCEEDED"  # the state of a group whose work counts


@dataclass(frozen=True, slots=True)
class Staged:
    """Staging of a job that has ended.

    Attributes:
        base: head of the warehouse log when the job began; no entry up to it names the job's
            folders.
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
        of: jobs with a retry, or a retry of a retry, that has not ended: it may adopt any of their
            folders.
        folders: staging folders that count in some retry, ended or not.
    """

    of: frozenset[str]
    folders: frozenset[str]


class Staging:
    """The staging of all jobs of one Redis. ``client`` must decode responses.

    Every call may raise redis.RedisError.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys

    def add(self, staged: Staged) -> None:
        """Have the staging of something that is no job collected, once its time has come."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.staged, staged.job, json.dumps(asdict(staged)))
            pipe.zadd(self._keys.staging_index, {staged.job: staged.forget_at + MARGIN})
            pipe.execute()

    def retries(self) -> Retries:
        """The staging that all retries hold that are not forgotten."""
        origins = cast(dict[str, str], self._redis.hgetall(self._keys.retries))
        going: set[str] = set()
        folders: set[str] = set()
        for retry in origins:
            open_still = self._redis.zscore(self._keys.due, retry) is not None
            counting = [
                _staging_of(text)
                for text in cast(list[str], self._redis.hvals(self._keys.of(retry).groups))
            ]
            # A damaged record does not say what it holds, so everything that it could have adopted
            # stays.
            if open_still or None in counting:
                going.update(_line(retry, origins))
            folders.update(filter(None, counting))
        return Retries(frozenset(going), frozenset(folders))

    def result_without_outputs(self, group: str, job: str) -> tuple[str, Done] | None:
        """Return the staging and work of a group that succeeded in ``job`` without outputs."""
        text = cast(str | None, self._redis.hget(self._keys.of(job).groups, group))
        try:
            record = json.loads(text or "{}")
            return (
                (str(record["staging"]), Done(**record["done"]))
                if record["state"] == SUCCEEDED
                else None
            )
        except (ValueError, LookupError, TypeError, RecursionError):
            return None  # it made something, it did not succeed, or the record is damaged

    def needed(self) -> Callable[[str], bool]:
        """Return a check whether a job may need the attempt folder of a file.

        Open jobs, retried jobs, and jobs that may be retried need it.

        What retries hold is read now, and the status of each job when its first file is asked for.
        """
        retries = self.retries()

        @cache
        def may_be_adopted(job: str) -> bool:
            status = self._redis.hget(self._keys.of(job).job, "status")
            return job in retries.of or (status is not None and status != FINISHED)

        def asked(path: str) -> bool:
            _staging, job, group, attempt, *_ = path.split("/")
            return f"{_staging}/{job}/{group}/{attempt}" in retries.folders or may_be_adopted(job)

        return asked


def _staging_of(record: str) -> str | None:
    """Return the folder that counts in a group record; empty without one, None if damaged."""
    try:
        return str(json.loads(record).get("staging") or "")
    except (ValueError, AttributeError, RecursionError):
        return None


def _line(retry: str, origins: dict[str, str]) -> Iterator[str]:
    """Return the retried job, the job that it retried, and so on. A retry adopts from all."""
    while (job := origins.get(retry, "")) and job != retry:
        yield job
        retry = job
