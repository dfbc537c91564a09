"""Redis facts: the state of the server and of the fleet's records. Read-only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from unstuck.coordinator.model.records import JOB_SCHEMA
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import REPORT_GROUP
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.spec.table_formats.registry import TABLE_FORMATS

JOBS_EXAMINED = 200  # open jobs, the newest, that are looked at


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server as it describes itself.

    Attributes:
        info: what it answers to INFO.
        fsync: of the append-only file: ``everysec``, ``always``, ``no``; None if it may not be
            asked.
        ahead: seconds that the clock of this machine is ahead of the server's; ``unsure`` by as
            much either way.
    """

    info: Mapping[str, Any]
    fsync: str | None
    ahead: float
    unsure: float


@dataclass(frozen=True, slots=True)
class JobWarehouse:
    """The warehouse of an open job: its address, and its id at the submit."""

    job: str
    warehouse: str
    id: str


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """The state of the fleet's records. Ages are seconds by the clock of Redis; None: no entry.

    Attributes:
        lag: reports that no coordinator has read; None if that is not known.
        unread_age, pending_age: of the oldest unread report; of the oldest report that was read and
            not finished.
        open: jobs that have not ended.
        overdue: by how long the most overdue of the open jobs, ``overdue_job``, is.
        swept_age: since the last sweep. ``beat``: does a beat hold its lock?
        warehouses: of open jobs, the newest; ``newer``: those of them that a newer release has
            stored.
        period: UNSTUCK_SWEEP_EVERY of the process that swept last.
        stray: messages for a coordinator that were sent without any prefix, so that no fleet reads
            them.
    """

    lag: int | None
    unread_age: float | None
    pending: int
    pending_age: float | None
    open: int
    overdue: float | None
    overdue_job: str
    swept_age: float | None
    beat: bool
    warehouses: tuple[JobWarehouse, ...]
    period: float | None = None
    stray: int = 0
    newer: tuple[str, ...] = ()


def server_facts(client: redis.Redis) -> ServerFacts:
    """Read the facts of the server. Raises: redis.RedisError."""
    info: dict[str, Any] = client.info()
    try:
        fsync = cast(dict[str, str], client.config_get("appendfsync")).get("appendfsync") or None
    except redis.ResponseError:  # managed servers do not let everybody ask
        fsync = None
    before = time.time()
    seconds, micros = client.time()
    after = time.time()
    return ServerFacts(
        info, fsync, (before + after) / 2 - (seconds + micros / 1e6), (after - before) / 2
    )


def record_facts(client: redis.Redis, keys: Keys) -> RecordFacts:
    """Read the facts of the records. ``client`` must decode responses. Raises: redis.RedisError."""
    pipe = client.pipeline(transaction=True)
    pipe.time()
    pipe.exists(keys.reports)
    pipe.zcard(keys.due)
    pipe.zrange(keys.due, 0, 0, withscores=True)
    pipe.hmget(keys.alive, ["at", "period"])
    pipe.exists(f"{keys.beat}:lock")
    (seconds, micros), reports, open_jobs, first, (swept, period), beat = pipe.execute()
    now = seconds + micros / 1e6
    lag, unread, pending, oldest = _stream(client, keys) if reports else (None, None, 0, None)
    overdue_job, due = first[0] if first else ("", None)
    warehouses, newer = _open_records(client, keys)
    return RecordFacts(
        lag=lag,
        unread_age=_age(unread, now),
        pending=pending,
        pending_age=_age(oldest, now),
        open=int(open_jobs),
        overdue=None if due is None else now - float(due),
        overdue_job=str(overdue_job),
        swept_age=None if swept is None else now - float(swept),
        beat=bool(beat),
        warehouses=warehouses,
        period=None if period is None else float(period),
        stray=_stray_messages(client),
        newer=newer,
    )


def unknown_jobs(client: redis.Redis, keys: Keys, jobs: Sequence[str]) -> list[str]:
    """Return those of ``jobs`` that are not in the store. Raises: redis.RedisError."""
    pipe = client.pipeline(transaction=False)
    for job in jobs:
        pipe.exists(keys.of(job).job)
    return [job for job, exists in zip(jobs, pipe.execute(), strict=True) if not exists]


def _stray_messages(client: redis.Redis) -> int:
    try:
        oldest = cast(str | None, client.lindex(CONTROL_QUEUE, -1))
        ours = oldest is not None and str(json.loads(oldest)["headers"]["task"]).startswith(
            "unstuck."
        )
        return client.llen(CONTROL_QUEUE) if ours else 0
    except (redis.ResponseError, ValueError, TypeError, KeyError):
        return 0  # the key belongs to another program


def _stream(client: redis.Redis, keys: Keys) -> tuple[int | None, str | None, int, str | None]:
    """Return the lag, the oldest unread id, the number of pending entries, and their oldest."""
    groups: list[dict[str, Any]] = client.xinfo_groups(keys.reports)
    group = next((info for info in groups if info["name"] == REPORT_GROUP), None)
    after = "-" if group is None else f"({group['last-delivered-id']}"
    unread = cast(list[tuple[str, Any]], client.xrange(keys.reports, min=after, count=1))
    pending: Any = (
        {"pending": 0, "min": None}
        if group is None
        else client.xpending(keys.reports, REPORT_GROUP)
    )
    lag = None if group is None or group.get("lag") is None else int(group["lag"])
    return lag, unread[0][0] if unread else None, int(pending["pending"]), pending["min"]


def _age(entry: str | None, now: float) -> float | None:
    """Return the age of a stream entry in seconds, by its id."""
    return None if entry is None else now - int(entry.partition("-")[0]) / 1000


def jobs_with_tables(client: redis.Redis, keys: Keys) -> dict[str, list[str]]:
    """Return the newest open jobs, by the table formats of their outputs.

    Raises: redis.RedisError.
    """
    jobs, pipe = open_jobs(client, keys), client.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(keys.of(job).job, "spec")
    formats = {job: _formats(spec or "") for job, spec in zip(jobs, pipe.execute(), strict=True)}
    return {name: [job for job in jobs if name in formats[job]] for name in TABLE_FORMATS}


def _formats(spec: str) -> set[str]:
    try:
        return {output.get("format") for output in json.loads(spec).get("outputs", {}).values()}
    except (ValueError, AttributeError):
        return set()  # a record that is damaged


def open_jobs(client: redis.Redis, keys: Keys) -> list[str]:
    """Return the newest open jobs. Raises: redis.RedisError."""
    still_open = [status for status in Status if not status.terminal]
    return Queries(client, keys).ids(still_open, limit=JOBS_EXAMINED)[:JOBS_EXAMINED]


def _open_records(
    client: redis.Redis, keys: Keys
) -> tuple[tuple[JobWarehouse, ...], tuple[str, ...]]:
    """Return the warehouses of open jobs, and the jobs that a newer release has stored."""
    jobs, pipe = open_jobs(client, keys), client.pipeline(transaction=False)
    for job in jobs:
        pipe.hmget(keys.of(job).job, "warehouse", "warehouse_id", "schema")
    records = list(zip(jobs, pipe.execute(), strict=True))
    warehouses = tuple(JobWarehouse(job, uri, id_) for job, (uri, id_, _) in records if uri and id_)
    schemas = ((job, schema or "") for job, (_, _, schema) in records)
    return warehouses, tuple(
        job for job, text in schemas if text.isdecimal() and int(text) > JOB_SCHEMA
    )
