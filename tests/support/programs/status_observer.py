"""A reader of job states, in a process of its own: it looks at one job after the other until each
has ended.

``python -m tests.support.programs.status_observer URL PREFIX WAREHOUSE`` reads ids of jobs, a line
each, answers ``looking`` at the first look at each, and writes what it saw (``ObserverResults``) as JSON at
the end of its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import redis

from tests.support.paths import PYTHONPATH, ROOT
from unstuck import Status
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import read_marker

ENDS = {
    Status.FINISHED: "SUCCEEDED",
    Status.FAILED: "FAILED",
    Status.CANCELED: "CANCELED",
    Status.STOPPED: "CANCELED",
}


@dataclass
class ObserverResults:
    """Results of the observer.

    Attributes:
        lies: facts that were not true at the moment of a terminal status.
        met: the terminal statuses, in order.
        looks: number of reads of a status.
    """

    lies: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    looks: int = 0


class Observer:
    """The process, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def watch(self, job: str) -> None:
        """Let it look at ``job``; returns when it has looked once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "looking\n"

    def seen(self) -> ObserverResults:
        """What it saw, after the last job has ended."""
        out, _ = self._process.communicate()
        return ObserverResults(**json.loads(out))


@contextmanager
def observer(url: str, prefix: str, warehouse: str) -> Iterator[Observer]:
    command = [sys.executable, "-m", __name__, url, prefix, warehouse]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(ROOT)])}
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Observer(process)
    finally:
        process.kill()
        process.wait()


def _until_it_has_ended(client: redis.Redis, keys: Keys, job: str, seen: ObserverResults) -> Status:
    of_job = keys.of(job).job
    seen.looks += 1
    status = Status(str(client.hget(of_job, "status")))
    print("looking", flush=True)
    while not status.terminal:
        seen.looks += 1
        status = Status(str(client.hget(of_job, "status")))
    return status


def _judge(
    client: redis.Redis, keys: Keys, warehouse: str, job: str, status: Status
) -> Iterator[str]:
    record = str(client.hget(keys.of(job).groups, "make"))
    if f'"{ENDS[status]}"' not in record:
        yield f"{job} is {status}, and its group is {record}"
    log = Warehouse(warehouse)
    slot = log.find_publish(job, 0)
    entry = None if slot is None else log.entry(slot)
    if (entry is not None and entry.kind == "package") is not (status is Status.FINISHED):
        yield f"{job} is {status}, and in the log stands {entry}"
    elif (
        entry is not None
        and entry.tokens
        and read_marker(Files(warehouse), entry.tokens[0]) is None
    ):
        yield f"{job}: no marker"


def main(url: str, prefix: str, warehouse: str) -> None:
    keys, seen = Keys(prefix), ObserverResults()
    with connect(url) as client:
        for line in sys.stdin:
            job = line.strip()
            status = _until_it_has_ended(client, keys, job, seen)
            seen.lies += _judge(client, keys, warehouse, job, status)
            seen.met.append(status)
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
