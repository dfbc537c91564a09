"""The list folds runs that need no attention: no job is lost or moved by it."""

from __future__ import annotations

from unstuck.coordinator.model.status import Status
from unstuck.read_model.job import JobInfo
from unstuck.views.jobs.job_views import folded


def job(
    name: str, status: Status = Status.FINISHED, schedule: str = "", backfill: str = ""
) -> JobInfo:
    return JobInfo(id=name, name=name, status=status, schedule=schedule, backfill=backfill)


def test_backfill_runs_and_earlier_finished_runs_are_folded_into_lines() -> None:
    failed = job("n3", Status.FAILED, "nightly")
    jobs = [
        job("alone"),
        *(
            job(f"b{n}", Status.FAILED if n else Status.RUNNING, "nightly", "2026-11-27T08:00:00Z")
            for n in range(3)
        ),
        *(job(f"n{n}", schedule="nightly") for n in range(3)),
        failed,
        *(job(f"m{n}", schedule="nightly") for n in range(2)),
        job("other", schedule="hourly"),
    ]
    lines = [[one.id for one in line] for line in folded(jobs)]
    assert lines == [
        ["alone"],
        ["b0", "b1", "b2"],
        ["n0"],
        ["n1", "n2", "m0", "m1"],
        ["n3"],
        ["other"],
    ]
