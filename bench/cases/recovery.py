"""Case g: seconds from ``kill -9`` of a worker, and of a coordinator, to the next useful event.

A worker dies with all that is below it, as when its host is lost; the useful event is that user
code of its group runs again, on another worker. A coordinator dies with reports that it has read;
the useful event is that another one has applied them.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import redis

from bench.case import Case, Stage
from bench.fleet import Fleet, wide

SETTINGS: dict[str, dict[str, Any]] = {
    "default settings": {},
    "UNSTUCK_LEASE_TTL=3s": {"lease_ttl": "3s"},
}
MEASURED = {
    "tiny": ("UNSTUCK_LEASE_TTL=3s",),
    "quick": ("UNSTUCK_LEASE_TTL=3s",),
    "full": tuple(SETTINGS),
}
GROUP = b"coordinators"  # the consumer group of the report stream
WIDTH = 400


def run(stage: Stage) -> Case:
    case = Case("g", "recovery: from kill -9 to the next useful event")
    for named in MEASURED[stage.size]:
        with stage.own_fleet(workers=2, slots=1, coordinators=2, **SETTINGS[named]) as fleet:
            for number in stage.rounds(most=2):
                case.add(
                    f"{named}: a killed worker's group runs again", "s", _kill_worker(fleet, number)
                )
                case.add(
                    f"{named}: a killed coordinator's reports are applied",
                    "s",
                    _kill_coordinator(fleet),
                )
    return case


def _kill_worker(fleet: Fleet, number: int) -> float:
    begun, gate = (fleet.folder / f"{what}-{number}" for what in ("begun", "gate"))
    step = {"python": "gate_steps:until", "params": {"begun": str(begun), "gate": str(gate)}}
    group = {"name": "held", "queue": "light", "spark": False, "steps": [step]}
    job = fleet.client.submit({"name": "held", "groups": [group]}).id
    fleet.await_that(lambda: _lines(begun) and _holder(fleet, job), "the group runs")
    name = _holder(fleet, job)
    assert name
    time.sleep(
        random.uniform(0.0, fleet.client.settings.lease_renew)
    )  # at any point between two renewals
    fleet.kill(name)
    killed = time.time()
    fleet.await_that(lambda: len(_lines(begun)) == 2, "the group runs again", timeout=120)
    seconds = float(_lines(begun)[1]) - killed
    gate.touch()
    fleet.finish(job)
    fleet.start(name, slots=1)
    _whole(fleet)
    return seconds


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _holder(fleet: Fleet, job: str) -> str | None:
    """Which worker says that it runs the job's group."""
    names = {process.pid: name for name, process in fleet.processes.items()}
    return next(
        (
            names.get(one.worker_pid)
            for one in fleet.client.fleet(include_unserved=False).runners
            if one.job == job
        ),
        None,
    )


def _kill_coordinator(fleet: Fleet) -> float:
    """It is stopped again and again, until it is found with reports that it has read and not
    applied.
    """
    names = [name for name in fleet.processes if name.startswith("coordinator")]
    jobs = [fleet.client.submit(wide(WIDTH)).id]
    while True:
        name = random.choice(names)
        time.sleep(random.uniform(0.005, 0.05))  # at any point of its work
        fleet.signal(name, signal.SIGSTOP)
        pid = fleet.processes[name].pid
        held = _pending(fleet, pid)
        time.sleep(
            0.05
        )  # what it had sent before it was stopped arrives meanwhile, and may be their commit
        held &= _pending(fleet, pid)
        if held:
            break
        fleet.signal(name, signal.SIGCONT)
        if fleet.client.jobs(limit=1)[0].status.terminal:
            jobs.append(fleet.client.submit(wide(WIDTH)).id)
    fleet.kill(name)
    killed = time.monotonic()
    fleet.await_that(lambda: not held & _all_pending(fleet), "its reports are applied", timeout=120)
    seconds = time.monotonic() - killed
    for job in jobs:
        fleet.finish(job)
    fleet.start(name)
    _whole(fleet)
    return seconds


def _pending(fleet: Fleet, pid: int) -> set[bytes]:
    """The reports that the coordinator with this pid has read and not acked."""
    client = fleet.server.client
    consumers = [one["name"] for one in client.xinfo_consumers(fleet.keys.reports, GROUP)]
    mine = [name for name in consumers if name.decode().split(":")[1] == str(pid)]
    return {entry for name in mine for entry in _all_pending(fleet, name)}


def _all_pending(fleet: Fleet, consumer: bytes | None = None) -> set[bytes]:
    client: redis.Redis = fleet.server.client
    entries = client.xpending_range(
        fleet.keys.reports, GROUP, "-", "+", 10_000, consumername=consumer
    )
    return {entry["message_id"] for entry in entries}


def _whole(fleet: Fleet) -> None:
    """Wait until every process of the fleet has reported itself."""
    pids = {
        process.pid
        for name, process in fleet.processes.items()
        if name.startswith(("worker", "coordinator"))
    }

    def heard() -> bool:
        seen = fleet.client.fleet(include_unserved=False)
        return pids <= {one.worker_pid for one in seen.runners} | {
            one.pid for one in seen.coordinators
        }

    fleet.await_that(heard, "every process has reported itself", timeout=120, every=0.1)
