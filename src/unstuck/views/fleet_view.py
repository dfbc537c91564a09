"""Reads the fleet: runners, coordinators, and the queues between them.

A process that died without notice is shown as silent for an hour, since people search for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import redis

from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.fleet import FleetInfo, QueueInfo, StalledProcess
from unstuck.coordinator.model.loading import bare_state
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.store.job_queries import Queries
from unstuck.read_model.job_list import JobList
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo
from unstuck.tasks.protocol.processes import COORDINATOR_SILENCE, ProcessRegistry

# Open jobs, the newest, in which queues are looked for that nobody may listen to.
JOBS_LOOKED_AT = 1000


def fleet_of(
    client: redis.Redis, keys: Keys, runner_silence: float, *, include_unserved: bool = True
) -> FleetInfo:
    """Read which processes are there.

    Args:
        client: must decode responses.
        runner_silence: seconds after which a runner that was not heard of counts as silent.
        include_unserved: include queues that open jobs name and nobody listens to. Reads each open
            job.
    """
    processes = ProcessRegistry(client, keys).read()
    pipe = client.pipeline(transaction=True)
    pipe.time()
    pipe.hget(keys.alive, "at")
    pipe.zrevrange(keys.stalled, 0, -1, withscores=True)
    (seconds, micros), swept, stalled = pipe.execute()
    now = seconds + micros / 1e6
    runners = [
        replace(process, silent=now - process.heard_at > runner_silence)
        for process in processes
        if isinstance(process, RunnerInfo)
    ]
    coordinators = [
        replace(process, silent=now - process.heard_at > COORDINATOR_SILENCE)
        for process in processes
        if isinstance(process, CoordinatorInfo)
    ]
    return FleetInfo(
        now,
        float(swept) if swept else None,
        tuple(
            sorted(
                runners,
                key=lambda runner: (runner.silent, runner.host, runner.worker_pid, runner.pid),
            )
        ),
        tuple(
            sorted(
                coordinators,
                key=lambda coordinator: (coordinator.silent, coordinator.host, coordinator.pid),
            )
        ),
        _queues(
            client,
            keys,
            runners,
            coordinators,
            _queues_of_open_jobs(client, keys) if include_unserved else set(),
        ),
        tuple(StalledProcess(worker, float(at)) for worker, at in stalled),
    )


def _queues(
    client: redis.Redis,
    keys: Keys,
    runners: Iterable[RunnerInfo],
    coordinators: Iterable[CoordinatorInfo],
    requested: Iterable[str],
) -> tuple[QueueInfo, ...]:
    """Return queues with messages or with live listeners, by name."""
    listeners: dict[str, int] = {CONTROL_QUEUE: 0}
    for queue in chain.from_iterable(
        process.queues for process in [*runners, *coordinators] if not process.silent
    ):
        listeners[queue] = listeners.get(queue, 0) + 1
    oldest: dict[str, float] = {}  # by the coordinator that has looked for longest
    for queue, since in chain.from_iterable(
        coordinator.oldest_since.items() for coordinator in coordinators if not coordinator.silent
    ):
        oldest[queue] = min(since, oldest.get(queue, since))
    names = sorted({*listeners, *requested})
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.llen(keys.queue(name))
    lengths = pipe.execute()
    views = (
        QueueInfo(name, int(n), listeners.get(name, 0), oldest.get(name) if n else None)
        for name, n in zip(names, lengths, strict=True)
    )
    return tuple(view for view in views if view.length or view.listeners)


def _queues_of_open_jobs(client: redis.Redis, keys: Keys) -> set[str]:
    """Return the queues that groups of open jobs name.

    They are the only trace of a queue to which nobody ever listened.
    """
    still_open = [status for status in Status if not status.terminal]
    jobs = JobList(Queries(client, keys)).jobs(status=still_open, limit=JOBS_LOOKED_AT)
    queued = [job.id for job in jobs if job.states.get(GroupState.QUEUED)]
    pipe = client.pipeline(transaction=False)
    for job in queued:
        pipe.hgetall(keys.of(job).job)
    names: set[str] = set()
    for job, fields in zip(queued, pipe.execute(), strict=True):
        # `why` reports it for the job; the fleet is shown without its queues.
        with suppress(NewerJob):
            plan = bare_state(job, fields).plan
            names.update(planned.spec.queue_name for planned in plan.groups.values())
    return names
