"""Case b: a chain of groups that do nothing, milliseconds per hop, against the chains of others.

DBOS and Prefect call the steps of a chain within one process; Celery, docket and Unstuck hand each
hop to a worker.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

from bench.case import Case, Stage
from bench.cases.join import outcomes
from bench.fleet import Fleet, chain
from unstuck.tasks.warehouse.marker import MARKER

LENGTH = {"tiny": 3, "quick": 40, "full": 40}
PEERS = ("celery", "docket", "dbos", "prefect")


def run(stage: Stage) -> Case:
    length = LENGTH[stage.size]
    case = Case("b", "chain: latency of a hop", "ms each")
    peers = {(name, "chain"): length for name in PEERS}
    stage.compare(case, f"{length} hops", lambda: stage.ours(chain(length), length), peers)
    for _ in stage.rounds():
        for part, seconds in _parts(stage.fleet, length).items():
            case.add(part, "ms", 1000 * seconds)
    return case


def _parts(fleet: Fleet, length: int) -> dict[str, float]:
    """The median hop, in seconds, from one point to the next; all processes are on one machine and
    have one clock.
    """
    with outcomes(fleet) as ended:
        job = fleet.client.submit(chain(length, "stamp")).id
        fleet.finish(job)
    queued = {
        event["group"]: event["at"]
        for _, event in fleet.client.events(job)
        if event["kind"] == "QUEUED"
    }
    records = {
        group.id: group
        for group in (member for one in fleet.client.show(job).groups for member in one.members)
    }
    hops: dict[str, list[float]] = {}
    for i in range(length):
        name = f"g{i}"
        record = records[name]
        marker = Path(fleet.client.settings.warehouse, record.folder, MARKER).stat().st_mtime
        points = {
            "a hop: queued → claimed": queued[name],
            "a hop: claimed → its step begins": record.started_at,
            "a hop: step begins → marker is written": float(record.results["began"]),
            "a hop: marker is written → outcome is recorded": marker,
            "a hop: outcome is recorded → the next one is queued": ended[job, name],
            "": queued.get(f"g{i + 1}", 0.0),
        }
        for (part, began), (_, done) in pairwise(points.items()):
            if done:
                hops.setdefault(part, []).append(done - began)
    return {part: statistics.median(times) for part, times in hops.items()}
