"""Case d: how fast one coordinator applies reports, of one wide job, and of many small jobs
interleaved.
"""

# Workers are far slower than a coordinator is asked to be. So it stands still (SIGSTOP) while real
# workers run all groups; then it is let go, and applies what has piled up. All groups are offered
# beforehand.

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import psutil

from bench.case import Case, Stage
from bench.fleet import CELERY, Fleet, wide
from bench.measure import measured

SHAPES = {  # jobs, groups of each
    "tiny": ((1, 100), (3, 2)),  # more than are offered at a time by default
    "quick": ((1, 1_000), (100, 5)),
    "full": ((1, 5_000), (1_000, 5)),
}


def run(stage: Stage) -> Case:
    case = Case("d", "reports of workers that one coordinator applies")
    with stage.own_fleet(dispatch_window=1_000_000) as fleet:
        fleet.stop(
            "beat"
        )  # its lock in Redis would lapse while nobody sweeps; the coordinator sweeps by itself
        for jobs, width in SHAPES[stage.size]:
            what = (
                f"{jobs:,} jobs of {width:,} groups" if jobs > 1 else f"one job of {width:,} groups"
            )
            for _ in stage.rounds(most=1):
                _measure(case, what, fleet, jobs, width)
    return case


def _measure(case: Case, what: str, fleet: Fleet, jobs: int, width: int) -> None:
    groups = jobs * width
    fleet.signal("worker 1", signal.SIGSTOP)
    submitted = [fleet.client.submit(wide(width)).id for _ in range(jobs)]
    fleet.await_that(
        lambda: _groups(fleet, jobs, "QUEUED") == groups, "all groups are offered", every=0.1
    )
    fleet.signal("coordinator 1", signal.SIGSTOP)
    before = _reports(fleet)
    fleet.signal("worker 1", signal.SIGCONT)
    for _ in range(2):  # nobody else would wake the runners
        call = (
            "-A",
            "unstuck.tasks",
            "call",
            "unstuck.run",
            "--args",
            '["light"]',
            "--queue",
            "light",
        )
        subprocess.run(
            [*CELERY, *call], env=fleet.env, cwd=fleet.folder, check=True, stdout=subprocess.DEVNULL
        )
    _run_all(fleet, before, groups)
    reports = _reports(fleet)["entries-added"] - before["entries-added"]

    one: dict[str, psutil.Process] = {"coordinator": fleet.processes["coordinator 1"]}
    with measured(one, reports) as sample:
        fleet.signal("coordinator 1", signal.SIGCONT)
        fleet.await_that(lambda: _applied(fleet), "all reports are applied", every=0.002)
    for job in submitted:
        fleet.finish(job)
    case.add(what, "reports/s", reports / sample.seconds)
    case.add(what, "groups/s", groups / sample.seconds)
    case.add(what, "reports per CPU second", reports / max(sample.cpu["coordinator"], 0.01))


def _groups(fleet: Fleet, jobs: int, state: str) -> int:
    return sum(job.states.get(state, 0) for job in fleet.client.jobs(limit=jobs))


def _reports(fleet: Fleet) -> dict[str, Any]:
    return dict(fleet.server.client.xinfo_stream(fleet.keys.reports))


def _run_all(fleet: Fleet, before: dict[str, Any], groups: int) -> None:
    """Wait until workers have reported the success of so many groups."""
    after, ended, at = before["last-generated-id"], 0, time.monotonic()
    while ended < groups:
        for _, entries in (
            fleet.server.client.xread({fleet.keys.reports: after}, count=5_000, block=1_000) or []
        ):
            after, at = entries[-1][0], time.monotonic()
            ended += sum(fields.get(b"kind") == b"succeeded" for _, fields in entries)
        if time.monotonic() - at > 60:
            raise RuntimeError(
                f"the workers report no more, {ended} of {groups} groups ended; see {fleet.folder}"
            )


def _applied(fleet: Fleet) -> bool:
    """Nothing is left to be read, and all that was read is acked."""
    last = _reports(fleet)["last-generated-id"]
    consumers = fleet.server.client.xinfo_groups(fleet.keys.reports)
    return all(group["last-delivered-id"] == last and not group["pending"] for group in consumers)
