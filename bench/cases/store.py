"""Case e: what many jobs cost that have nothing to do: a sweep, ``list``, ``show``, and bytes in
Redis.

Paused jobs were paused before anything of theirs ran. Running jobs have run one group, and their
second group stands ready on a queue to which no worker listens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.case import Case, Stage
from bench.fleet import Fleet, wide
from unstuck import Status

ROOT = Path(__file__).parents[2]
JOBS = {"tiny": (4, 2), "quick": (1_000, 100), "full": (10_000, 1_000)}  # paused, running
SWEEPS = {"tiny": 1, "quick": 5, "full": 12}
NOOP = {"queue": "light", "spark": False, "steps": [{"python": "noop_steps:hop"}]}


def run(stage: Stage) -> Case:
    paused, running = JOBS[stage.size]
    case = Case("e", f"{paused:,} paused and {running:,} running jobs that wait")
    with stage.own_fleet() as fleet:
        for name in ("beat", "coordinator 1"):  # so that nothing but the measured sweep asks
            fleet.stop(name)
        stage.say("sweeps of an empty store")
        _sweeps(case, fleet, "without open jobs", SWEEPS[stage.size])
        for name in ("coordinator 1", "beat"):
            fleet.start(name)
        _fork_bytes(case, fleet)
        stage.say("submitting jobs")
        before, indexes = _used(fleet), _indexes(fleet)
        _pause(fleet, paused)
        case.add(
            "Redis, of a paused job, all that is used", "bytes", (_used(fleet) - before) / paused
        )
        for key, size in sorted(_indexes(fleet).items()):
            if (more := (size - indexes.get(key, 0)) / paused) >= 1:
                case.add(f"Redis, of a paused job, in `{key}`", "bytes", more)
        for name in ("beat", "coordinator 1"):
            fleet.stop(name)
        stage.say("sweeps of paused jobs")
        _sweeps(case, fleet, "with the paused jobs", SWEEPS[stage.size])
        for name in ("coordinator 1", "beat"):
            fleet.start(name)
        _begin(fleet, running)
        for name in ("beat", "worker 1", "coordinator 1"):
            fleet.stop(name)
        stage.say("sweeps of a full store")
        _sweeps(case, fleet, "with all jobs", SWEEPS[stage.size])
        _views(case, fleet)
    return case


def _begin(fleet: Fleet, running: int) -> None:
    begun = {
        "name": "begun",
        "groups": [{"name": "a", **NOOP}, {"name": "b", "needs": ["a"], **NOOP, "queue": "none"}],
    }
    for _ in range(running):
        fleet.client.submit(begun)

    def all_begun() -> bool:
        jobs = fleet.client.jobs(status=[Status.RUNNING], limit=None)
        return (
            sum(
                job.states.get("QUEUED", 0) == 1 and job.states.get("SUCCEEDED", 0) == 1
                for job in jobs
            )
            == running
        )

    fleet.await_that(all_begun, "all running jobs have begun", every=0.2)


def _pause(fleet: Fleet, paused: int) -> None:
    idle = {"name": "idle", "groups": [{"name": "a", **NOOP, "queue": "none"}]}
    for _ in range(paused):
        fleet.client.pause(fleet.client.submit(idle).id)

    def all_paused() -> bool:
        return len(fleet.client.jobs(status=[Status.PAUSED], limit=None)) == paused

    fleet.await_that(all_paused, "all other jobs are paused", every=0.5)


def _used(fleet: Fleet) -> int:
    return int(fleet.server.client.info("memory")["used_memory"])


def _indexes(fleet: Fleet) -> dict[str, int]:
    """Bytes of each key that is of no job alone, by MEMORY USAGE."""
    client = fleet.server.client
    shared = [
        key
        for key in client.scan_iter(match=f"{fleet.keys.prefix}:*", count=1_000)
        if b"{" not in key
    ]
    return {key.decode(): client.memory_usage(key, samples=0) or 0 for key in shared}


def _sweeps(case: Case, fleet: Fleet, what: str, count: int) -> None:
    program = [sys.executable, "-m", "bench.sweeps", str(count)]
    env = {**fleet.env, "PYTHONPATH": f"{fleet.env['PYTHONPATH']}:{ROOT}"}
    done = subprocess.run(
        program, env=env, cwd=fleet.folder, check=True, stdout=subprocess.PIPE, text=True
    )
    for sweep in json.loads(done.stdout):
        case.add(f"a sweep, {what}", "ms", 1000 * sweep["seconds"])
        case.add(f"a sweep, {what}: CPU", "ms", 1000 * sweep["cpu"])
        case.add(f"a sweep, {what}: jobs decided", "jobs", sweep["decided"])
        case.add(f"a sweep, {what}: commands", "commands", sweep["commands"])


def _views(case: Case, fleet: Fleet) -> None:
    client = fleet.client
    paused = client.jobs(status=[Status.PAUSED], limit=20)
    running = client.jobs(status=[Status.RUNNING], limit=20)
    for what, ask in (
        ("list, the newest 50", lambda: client.jobs()),
        ("list, the newest 50 that are RUNNING", lambda: client.jobs(status=[Status.RUNNING])),
        ("list, by a name that is rare", lambda: client.jobs(name="warm-*")),
        ("show, of a running job", lambda: client.show(running[0].id)),
        ("show with why, of a running job", lambda: client.show(running[0].id, why=True)),
    ):
        for seconds in _timed(ask):
            case.add(what, "ms", 1000 * seconds)
    for what, jobs in (("paused job", paused), ("running job", running)):
        for job in jobs:
            rest, events = _bytes(fleet, job.id)
            case.add(f"Redis, of a {what}, events apart", "bytes", rest)
            case.add(f"Redis, of a {what}: its events", "bytes", events)


def _timed(ask: Callable[[], Any], times: int = 20) -> Iterator[float]:
    for _ in range(times):
        began = time.perf_counter()
        ask()
        yield time.perf_counter() - began


def _fork_bytes(case: Case, fleet: Fleet) -> None:
    """What one more member of a fork takes that has succeeded: the difference of two forks."""
    sizes = {}
    for width in (10, 110):
        fleet.finish(job := fleet.client.submit(wide(width)).id)
        sizes[width] = _bytes(fleet, job)
    for number, what in enumerate(
        ("of a group that succeeded, events apart", "of a group that succeeded: its events")
    ):
        case.add(f"Redis, {what}", "bytes", (sizes[110][number] - sizes[10][number]) / 100)


def _bytes(fleet: Fleet, job: str) -> tuple[int, int]:
    """Bytes of all keys of a job but its events, and of its events, by MEMORY USAGE.

    Indexes of all jobs are not in.
    """
    keys = vars(fleet.keys.of(job))
    sizes = {
        name: fleet.server.client.memory_usage(key, samples=0) or 0 for name, key in keys.items()
    }
    return sum(size for name, size in sizes.items() if name != "events"), sizes["events"]
