"""The fleet as people see it: runners, coordinators, and the queues between them. Read-only; it decides nothing.

Runners are described by their watchdogs (``tasks.watchdog``), coordinators by themselves (``heartbeat``).
Who died without a goodbye is shown as silent for an hour, since that is what a person looks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import redis

from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.loading import bare_state
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.spec.checks import CONTROL_QUEUE
from unstuck.tasks.protocol.keys import Keys

COORDINATOR_SILENCE = 10.0  # seconds; one that is well notes itself about once a second
JOBS_LOOKED_AT = 1000  # open jobs, the newest, in which queues are looked for that nobody may listen to


@dataclass(frozen=True, slots=True)
class SeenThere:
    """The warehouse that a process of the fleet was set to, as it saw it last (``tasks.warehouse.probe``).

    Attributes:
        uri: its address; None if the process was set to none, or is of an older release.
        id: empty if there is no warehouse; None if that is not known, and ``trouble`` says why, if anything does.
        looked_at: when it looked, by the clock of Redis; None if it did not say.
    """

    uri: str | None = None
    id: str | None = None
    trouble: str = ""
    looked_at: float | None = None


@dataclass(frozen=True, slots=True)
class RunsOn:
    """The release of Unstuck and the Python that a process runs on; empty if it is not known, or does not say."""

    release: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class RunnerView:
    """One runner as its watchdog last described it. Times are seconds by the clock of Redis.

    Attributes:
        pid, worker_pid: of the runner, and of the Celery worker above it.
        taken_at: when it last took a hint from the broker, whatever came of it; None: it never did.
        claimed_at: its last claim; None if it never claimed anything.
        seen: when its watchdog was last heard of; ``silent`` if that is too long ago.
        job, group, attempt: what it runs, since ``since``; None if it is idle. ``step`` as the step was last called.
        idle_since: when it last had nothing to do and was free to take more; None if it runs something, if its worker
            was told to stop, or if it is of an older release.
    """

    id: str
    host: str
    pid: int
    worker_pid: int
    queues: tuple[str, ...]
    claimed_at: float | None
    seen: float
    silent: bool
    job: str | None = None
    group: str | None = None
    attempt: int | None = None
    since: float | None = None
    step: str | None = None
    taken_at: float | None = None
    warehouse: SeenThere = SeenThere()
    idle_since: float | None = None
    runs_on: RunsOn = RunsOn()


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """One coordinator as it last noted itself. Times are seconds by the clock of Redis.

    Attributes:
        read_at: when it last read a worker's report; None: it never did.
        swept_at: when its last sweep ended; None: it never swept.
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    read_at: float | None
    swept_at: float | None
    seen: float
    silent: bool
    warehouse: SeenThere = SeenThere()
    runs_on: RunsOn = RunsOn()


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: how many messages wait in the broker, and how many runners listen (of ``control``: coordinators).

    Attributes:
        oldest_since: since when its oldest message has lain there, as far as a coordinator that is heard of has seen;
            None if nothing waits there, or nobody looked.
    """

    name: str
    length: int
    listeners: int
    oldest_since: float | None = None


@dataclass(frozen=True, slots=True)
class DeafView:
    """A worker or coordinator (``host:pid``) that found at ``at`` that it received nothing more, and ended itself."""

    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet as it stood at ``at``; those that are silent come last.

    Attributes:
        swept_at: the last tick of any sweep.
        deaf: workers and coordinators that went deaf within the last day, the last one first.
    """

    at: float
    swept_at: float | None
    runners: tuple[RunnerView, ...]
    coordinators: tuple[CoordinatorView, ...]
    queues: tuple[QueueView, ...]
    deaf: tuple[DeafView, ...] = ()


def fleet_of(client: redis.Redis, keys: Keys, runner_silence: float, *, wanted: bool = True) -> FleetView:
    """Who is there.

    Args:
        client: must decode responses.
        runner_silence: seconds after which a runner that was not heard of counts as silent.
        wanted: show also queues that open jobs name and nobody listens to; costs a look at each of them.
    """
    pipe = client.pipeline(transaction=True)
    pipe.time()
    pipe.hget(keys.alive, "at")
    pipe.zrange(keys.runners_seen, 0, -1, withscores=True)
    pipe.hgetall(keys.runners)
    pipe.zrange(keys.coordinators_seen, 0, -1, withscores=True)
    pipe.hgetall(keys.coordinators)
    pipe.zrevrange(keys.deaf, 0, -1, withscores=True)
    (seconds, micros), swept, runners_seen, runners, coordinators_seen, coordinators, deaf = pipe.execute()
    now = seconds + micros / 1e6
    found_runners = [_runner(line, seen, now, runner_silence) for line, seen in _lines(runners_seen, runners)]
    heads = _lines(coordinators_seen, coordinators)
    found_coordinators = [_coordinator(line, seen, now) for line, seen in heads]
    standing = _standing(line for line, seen in heads if now - seen <= COORDINATOR_SILENCE)
    return FleetView(
        now,
        float(swept) if swept else None,
        tuple(sorted(found_runners, key=lambda one: (one.silent, one.host, one.worker_pid, one.pid))),
        tuple(sorted(found_coordinators, key=lambda one: (one.silent, one.host, one.pid))),
        _queues(client, keys, found_runners, found_coordinators, _wanted(client, keys) if wanted else set(), standing),
        tuple(DeafView(worker, float(at)) for worker, at in deaf),
    )


def _lines(seen: Iterable[tuple[str, float]], described: Mapping[str, str]) -> Iterable[tuple[dict[str, Any], float]]:
    return [({"id": name, **json.loads(described[name])}, float(at)) for name, at in seen if name in described]


def _runner(line: Mapping[str, Any], seen: float, now: float, silence: float) -> RunnerView:
    """Fields that an older release did not describe are left empty."""
    return RunnerView(
        line["id"],
        line.get("host", ""),
        int(line.get("pid", 0)),
        int(line.get("worker_pid", 0)),
        tuple(line.get("queues", ())),
        line.get("claimed_at"),
        seen,
        now - seen > silence,
        line.get("job"),
        line.get("group"),
        line.get("epoch"),
        line.get("since"),
        line.get("step"),
        line.get("taken_at", line.get("claimed_at")),
        _seen_there(line),
        line.get("idle_since"),
        RunsOn(line.get("release", ""), line.get("python", "")),
    )


def _coordinator(line: Mapping[str, Any], seen: float, now: float) -> CoordinatorView:
    return CoordinatorView(
        line["id"],
        line["host"],
        int(line["pid"]),
        tuple(line["queues"]),
        line["read_at"],
        line["swept_at"],
        seen,
        now - seen > COORDINATOR_SILENCE,
        _seen_there(line),
        RunsOn(line.get("release", ""), line.get("python", "")),
    )


def _seen_there(line: Mapping[str, Any]) -> SeenThere:
    uri, known, trouble = line.get("warehouse"), line.get("warehouse_id"), line.get("warehouse_trouble", "")
    return SeenThere(uri, known, trouble, line.get("warehouse_looked_at"))


def _standing(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Queue → since when its oldest message lies there, by the coordinator that has looked for longest."""
    standing: dict[str, float] = {}
    for line in lines:
        for queue, since in line.get("standing", {}).items():
            standing[queue] = min(since, standing.get(queue, since))
    return standing


def _queues(
    client: redis.Redis,
    keys: Keys,
    runners: Iterable[RunnerView],
    coordinators: Iterable[CoordinatorView],
    wanted: Iterable[str],
    standing: Mapping[str, float],
) -> tuple[QueueView, ...]:
    """Queues with messages or with listeners that are not silent, by name."""
    listeners: dict[str, int] = {CONTROL_QUEUE: 0}
    heard = [one.queues for one in runners if not one.silent] + [one.queues for one in coordinators if not one.silent]
    for queue in chain.from_iterable(heard):
        listeners[queue] = listeners.get(queue, 0) + 1
    names = sorted({*listeners, *wanted})
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.llen(keys.queue(name))
    lengths = pipe.execute()
    views = (
        QueueView(name, int(n), listeners.get(name, 0), standing.get(name) if n else None)
        for name, n in zip(names, lengths, strict=True)
    )
    return tuple(view for view in views if view.length or view.listeners)


def _wanted(client: redis.Redis, keys: Keys) -> set[str]:
    """The queues that groups of open jobs name: the only trace of a queue to which nobody ever listened."""
    pipe = client.pipeline(transaction=False)
    for status in Status:
        if not status.terminal:
            pipe.zrevrange(keys.status(status), 0, JOBS_LOOKED_AT - 1)
    jobs = [job for found in pipe.execute() for job in found][:JOBS_LOOKED_AT]
    if not jobs:
        return set()
    summaries = cast(list[str | None], client.hmget(keys.summary, jobs))
    pipe = client.pipeline(transaction=False)
    queued = [
        job
        for job, text in zip(jobs, summaries, strict=True)
        if text is not None and json.loads(text)["groups"].get(GroupState.QUEUED)
    ]
    for job in queued:
        pipe.hgetall(keys.of(job).job)
    wanted: set[str] = set()
    for job, fields in zip(queued, pipe.execute(), strict=True):
        with suppress(NewerJob):  # why says so of the job, and the fleet is shown without its queues
            plan = bare_state(job, fields).plan
            wanted.update(planned.spec.queue_name for planned in plan.groups.values())
    return wanted
