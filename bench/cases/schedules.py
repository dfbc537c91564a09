"""Case m: schedules that wait, a tick with nothing new, one new file among many, and how late a
tick is.
"""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.json
import pyarrow.parquet

from bench.case import Case, Size, Stage
from bench.fleet import Fleet
from bench.measure import cpu_by_role, measured
from unstuck import JobSpec
from unstuck.coordinator.publishing.streams.job_backlog import BacklogLooks
from unstuck.tasks.warehouse.log import Warehouse

FILES: dict[Size, int] = {"tiny": 20, "quick": 2_000, "full": 20_000}
IDLE: dict[Size, int] = {"tiny": 10, "quick": 100, "full": 1_000}
SECONDS: dict[Size, float] = {"tiny": 1.0, "quick": 10.0, "full": 30.0}
TICKS: dict[Size, int] = {"tiny": 2, "quick": 5, "full": 15}


def run(stage: Stage) -> Case:
    case = Case("m", "schedules and files that arrive", "s")
    with stage.own_fleet() as fleet:
        _files(case, stage, fleet)
        _ticks(case, stage, fleet)
        _idle(case, stage, fleet)
    return case


def _files(case: Case, stage: Stage, fleet: Fleet) -> None:
    """A folder of many files that were loaded: a look at it, and one more file."""
    many = FILES[stage.size]
    folder, warehouse = fleet.folder / "landing", Warehouse(str(fleet.folder / "warehouse"))
    folder.mkdir()
    numbers = count()
    for _ in range(many):
        _arrive(folder, next(numbers))
    load = _load(folder)
    fleet.finish(fleet.client.submit(load).id)
    for _ in range(4):  # both runners have loaded what reads and writes the files
        _arrive(folder, next(numbers))
        fleet.finish(fleet.client.submit(load).id)
    backlog, spec = BacklogLooks(), JobSpec.from_values(load, None)
    among = f"among {many:,} files"
    for _ in stage.rounds():
        for which in ("the first look after a load", "a look that finds nothing new"):
            at, cpu = time.perf_counter(), time.process_time()
            (look,) = backlog.look(spec, warehouse).values()
            case.add(f"{which}, {among}: CPU", "ms", 1000 * (time.process_time() - cpu))
            case.add(f"{which}, {among}", "ms", 1000 * (time.perf_counter() - at))
            assert not look.arrived
        arrived = _arrive(folder, next(numbers))
        with measured(fleet.processes, 1) as sample:
            fleet.finish(fleet.client.submit(load).id)
        at = time.perf_counter()
        _plain(folder, arrived, fleet.folder / "plain.parquet")
        plain = time.perf_counter() - at
        case.add(f"a job that loads one new file {among}", "ms", 1000 * sample.seconds)
        case.add("the same file by a plain script that lists the folder", "ms", 1000 * plain)
        case.add("the job over the script", "ms", 1000 * (sample.seconds - plain))
    assert warehouse.dataset("loads").rows == next(numbers)


def _ticks(case: Case, stage: Stage, fleet: Fleet) -> None:
    """How long after its tick the job of a run is stored."""
    fleet.client.schedules.set({**_idle_job("ticking"), "schedule": {"every": 1}})
    wanted = TICKS[stage.size]
    fleet.await_that(
        lambda: len(fleet.client.schedules.runs("ticking")) >= wanted,
        "the runs of a schedule",
        every=0.1,
    )
    fleet.client.schedules.stop("ticking")
    for job in fleet.client.schedules.runs("ticking", wanted):
        tick = datetime.fromisoformat(job.key.partition("@")[2])
        case.add(
            "from a tick to its stored job", "ms", 1000 * (job.submitted_at - tick.timestamp())
        )


def _idle(case: Case, stage: Stage, fleet: Fleet) -> None:
    """The CPU of schedules that wait: all processes of the fleet, before they are made and
    after.
    """
    without = _share(fleet, SECONDS[stage.size])
    many = IDLE[stage.size]
    for number in range(many):
        schedule = {"cron": "30 2 1 1 *", "zone": "Europe/Berlin"}
        fleet.client.schedules.set({**_idle_job(f"idle-{number}"), "schedule": schedule})
    for _ in stage.rounds():
        share = _share(fleet, SECONDS[stage.size])
        case.add(f"{many:,} idle schedules, of one core", "%", 100 * (share - without))


def _share(fleet: Fleet, seconds: float) -> float:
    """CPU seconds a second of the coordinator, beat and Redis."""
    processes = {
        name: one for name, one in fleet.processes.items() if not name.startswith("worker")
    }
    before, at = sum(cpu_by_role(processes).values()), time.perf_counter()
    time.sleep(seconds)  # nothing is awaited: what idle processes take in this time is measured
    return (sum(cpu_by_role(processes).values()) - before) / (time.perf_counter() - at)


def _arrive(folder: Path, number: int) -> Path:
    path = folder / f"{number:06}.json"
    path.write_text(json.dumps({"id": number, "at": f"at {number}", "amount": number / 8}))
    return path


def _plain(folder: Path, arrived: Path, target: Path) -> None:
    assert arrived.name in {entry.name for entry in os.scandir(folder) if entry.is_file()}
    with target.open("wb") as file:
        pyarrow.parquet.write_table(pyarrow.json.read_json(arrived), file)
        file.flush()
        os.fsync(file.fileno())


def _load(folder: Path) -> dict[str, Any]:
    events = {
        "stream": str(folder),
        "format": "json",
        "schema": "id BIGINT, at STRING, amount DOUBLE",
    }
    step = {"python": "stream_steps:load", "output": "loads"}
    group = {
        "name": "load",
        "queue": "light",
        "spark": False,
        "inputs": {"events": events},
        "steps": [step],
    }
    return {"name": "load", "groups": [group], "outputs": {"loads": {"mode": "append"}}}


def _idle_job(name: str) -> dict[str, Any]:
    step = {"python": "noop_steps:hop"}
    return {
        "name": name,
        "groups": [{"name": "g", "queue": "light", "spark": False, "steps": [step]}],
    }
