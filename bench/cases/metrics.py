"""Case n: a scrape of the metrics of a store with many jobs, schedules, queues and runners."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from prometheus_client import generate_latest

from bench.case import Case, Size, Stage
from bench.server import Server
from unstuck import Client, Settings
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.store.totals import MAX_NAMES
from unstuck.metrics.scrape import Exporter
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.transport.redis_client import connect

JOBS: dict[Size, int] = {"tiny": 20, "quick": 1_000, "full": 10_000}
SCHEDULES: dict[Size, int] = {"tiny": 10, "quick": 100, "full": 1_000}
SCRAPES: dict[Size, int] = {"tiny": 2, "quick": 10, "full": 30}
QUEUES, RUNNERS = 20, 100


def run(stage: Stage) -> Case:
    case = Case("n", "a scrape of the metrics", "s")
    jobs, schedules = JOBS[stage.size], SCHEDULES[stage.size]
    folder = stage.folder / "metrics"
    folder.mkdir()
    with closing(Server(folder)) as server:
        settings = Settings(redis_url=server.url(), warehouse=str(folder / "warehouse"))
        with connect(settings.redis_url) as store, Client(settings) as client:
            exporter = Exporter(store, settings)
            _scrapes(case, stage, exporter, "an empty store")
            stage.say("filling the store")
            _fill(client, store, jobs, schedules)
            text = _scrapes(case, stage, exporter, f"{jobs:,} jobs and {schedules:,} schedules")
        case.add("lines of the larger scrape", "", text.count(b"\n"))
        case.add("its size", "KB", len(text) / 1000)
    return case


def _scrapes(case: Case, stage: Stage, exporter: Exporter, what: str) -> bytes:
    text = b""
    for _ in range(SCRAPES[stage.size]):
        at, cpu = time.perf_counter(), time.process_time()
        text = generate_latest(exporter)
        case.add(f"a scrape, {what}", "ms", 1000 * (time.perf_counter() - at))
        case.add(f"CPU of the exporter, {what}", "ms", 1000 * (time.process_time() - cpu))
    return text


def _fill(client: Client, store: Any, jobs: int, schedules: int) -> None:
    """As many schedules and jobs as that, of as many names as are counted, on some queues with
    runners.
    """
    keys = Keys(client.settings.prefix)
    for number in range(schedules):
        schedule = {"cron": "30 2 1 1 *", "zone": "Europe/Berlin"}
        client.schedules.set({**_job(f"schedule-{number}", 0), "schedule": schedule})
    queued = GroupRecord(GroupState.QUEUED, 1, "0" * 16, time.time()).to_json()
    for number in range(jobs):
        job = client.submit(_job(f"job-{number % MAX_NAMES}", number % QUEUES)).id
        lane = f"queue-{number % QUEUES}"
        store.hset(keys.of(job).groups, "g", queued)
        store.zadd(keys.ready(lane), {str(Offer(job, "g", 1, "0" * 16)): number})
        store.zadd(keys.lanes, {lane: 0})
    for number in range(MAX_NAMES):
        totals = '{"FINISHED":900,"FAILED":3,"4":800,"5":100,"6":3,"seconds":40000.5}'
        store.hset(keys.totals, f"job job-{number}", totals)
        store.hset(
            keys.published, f"dataset-{number}@/warehouse", f"{number} {time.time():.6f} 1000"
        )
    one = RunnerInfo(
        id="", host="host", pid=1, worker_pid=1, queues=("light",), heard_at=0.0, idle_since=0.0
    )
    for number in range(RUNNERS):
        queues = (f"queue-{number % QUEUES}",)
        ProcessRegistry(store, keys).note(
            lambda now, number=number, queues=queues: replace(
                one, id=f"host:{number}", queues=queues, heard_at=now
            )
        )


def _job(name: str, queue: int) -> dict[str, Any]:
    step = {"python": "noop_steps:hop"}
    return {
        "name": name,
        "groups": [{"name": "g", "queue": f"queue-{queue}", "spark": False, "steps": [step]}],
    }
