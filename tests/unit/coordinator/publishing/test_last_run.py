"""The last run of a schedule, found in the warehouse log alone: Redis may have lost the
schedule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from unstuck.coordinator.model.schedule_record import Run, RunSuccess
from unstuck.coordinator.publishing.last_run import last_run
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry

TICK = 1_790_000_000.0
SCHEMA = '{"type":"struct","fields":[]}'


class PackageLog:
    """A warehouse log to which packages of jobs are added."""

    def __init__(self, root: str) -> None:
        self.warehouse = Warehouse(root)
        self.warehouse.ensure_id()

    def add(
        self,
        job: str,
        name: str = "nightly",
        kind: Literal["package", "abort"] = "package",
        of: str = "",
    ) -> int:
        """Add an entry; ``of``: its package id, unless that is the job."""
        n = self.warehouse.head() + 1
        package_id = of or job if kind == "package" else ""
        change = {"rows": Change("append", [], [], n, SCHEMA)} if kind == "package" else {}
        assert self.warehouse.create_entry(
            n, Entry(n, n - 1, job, kind, job, name, 1e9 + n, {}, change, package_id=package_id)
        )
        return n

    def add_run(self, run: Run, schedule: str = "nightly") -> int:
        return self.add(run.job_id(schedule), schedule, of=run.package_id(schedule))


@pytest.fixture
def log(tmp_path: Path) -> PackageLog:
    return PackageLog(str(tmp_path))


@pytest.mark.parametrize(
    "run", [Run(TICK), Run(TICK, 2), Run(TICK, 200), Run(TICK, 2, redo="2026-01-01T00:00:00Z")]
)
def test_a_run_is_identified_by_its_tick_for_any_retry(log: PackageLog, run: Run) -> None:
    n = log.add_run(run)
    job = run.job_id("nightly")
    assert last_run(log.warehouse, "nightly") == RunSuccess(job, TICK, 1e9 + n, n, {"rows": n})


def test_only_the_newest_run_of_the_schedule_counts(log: PackageLog) -> None:
    log.add_run(Run(TICK, 1))
    newest = Run(TICK + 3600, 3)
    n = log.add_run(newest)
    log.add(Run(TICK + 7200, 1).job_id("nightly"), kind="abort")
    log.add_run(Run(TICK + 7200, 1), "hourly")
    log.add_run(Run(TICK + 7200, 1, by_hand=True))
    log.add("20260101T000000-abcdefgh")  # submitted by a person
    log.add("restore-rows-1-2", name="restore of version 1 by ann")
    found = last_run(log.warehouse, "nightly")
    assert found is not None
    assert (found.job, found.tick, found.version) == (newest.job_id("nightly"), TICK + 3600, n)
    assert last_run(log.warehouse, "weekly") is None
