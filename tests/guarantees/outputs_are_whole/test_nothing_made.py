"""Where nothing was made, nothing is marked: a group without outputs, results and fork values
leaves no file.

A retry knows all the same what it did, from the record of the job that it retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.coordinator.model.records import Reason
from unstuck.read_model.job import JobInfo

STEPS = """
from pathlib import Path
import pyarrow as pa

HERE = Path(__file__).parent

def tell(spark, ctx):
    with (HERE / "told").open("a") as file:
        file.write("x")

def tell_one(spark, ctx, n):
    tell(spark, ctx)
    if n == 2:
        ctx.result("n", n)

def count(spark, ctx):
    return pa.table({"told": [len((HERE / "told").read_text())]})

def report(spark, ctx):
    assert not (HERE / "broken").exists(), "broken"
    assert ctx.results("many") == [{}, {"n": 2}, {}], ctx.results("many")
    assert ctx.results("tell") == {}, ctx.results("tell")
    return ctx.input("told")
"""
SPEC = """
name: told
defaults: {retry: {max: 0}}
groups:
  - {name: tell, spark: false, steps: [{python: "telling:tell"}]}
  - {name: many, spark: false, for_each: {n: [1, 2, 3]}, steps: [{python: "telling:tell_one"}]}
  - {name: count, needs: [tell, many], spark: false, steps: [{python: "counting:count", output: told}]}
  - {name: report, needs: [tell, many, count], spark: false, steps: [{python: "counting:report", output: report}]}
"""


class ProjectFleet:
    """A project with steps, and a fleet that runs them."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.folder = folder
        self.client = Client(Settings(redis_url=redis_url, warehouse=str(folder / "warehouse")))
        (folder / "telling.py").write_text(STEPS)
        (folder / "counting.py").write_text(STEPS)

    def ended(self, job: str) -> JobInfo:
        return self.client.wait(job)

    def told(self) -> int:
        return len((self.folder / "told").read_text())

    def broken_job(self) -> JobInfo:
        (self.folder / "broken").touch()
        view = self.ended(self.client.submit(JobSpec.from_text(SPEC)).id)
        assert view.status is Status.FAILED
        (self.folder / "broken").unlink()
        return view


@pytest.fixture
def project(redis_server: RedisServer, tmp_path: Path) -> Iterator[ProjectFleet]:
    project = ProjectFleet(redis_server.url, tmp_path)
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_SPARK_MASTER": "none"}
    with (
        fleet.worker(redis_server.url, tmp_path, environ={**environ, "PYTHONPATH": str(tmp_path)}),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield project


def reasons(view: JobInfo) -> dict[str, Reason | None]:
    return {member.id: member.reason for group in view.groups for member in group.members}


def test_a_retry_does_not_rerun_a_group_without_outputs(project: ProjectFleet) -> None:
    # Given: a job that failed at its end, and groups before it that made nothing
    failed = project.broken_job()
    assert project.told() == 4

    # When: it is retried, and the retry of a job that had no time to take anything over, too
    retried = project.ended(project.client.retry(failed.id).id)

    # Then: nothing is told again, and what stands behind it is read in its place
    assert retried.status is Status.FINISHED
    assert project.told() == 4
    assert {
        id for id, reason in reasons(retried).items() if reason and reason.code == "ADOPTED"
    } == {*("tell", "many[0]", "many[1]", "many[2]", "count")}
    staging = project.folder / "warehouse" / "_staging" / failed.id
    marked = {path.parent.parent.name for path in staging.glob("*/*/_marker.json")}
    assert marked == {"many.1", "count"}, "what made nothing has no folder"
    assert not [path for path in staging.glob("tell/*") if path.is_dir()]
    assert duckdb.read_parquet(
        published_files(str(project.folder / "warehouse"), "report")
    ).fetchall() == [(4,)]


def test_changed_code_reruns_a_group_without_outputs_and_its_successors(
    project: ProjectFleet,
) -> None:
    # Given
    failed = project.broken_job()

    # When: its code is mended
    (project.folder / "telling.py").write_text(STEPS.replace('write("x")', 'write("yy")'))
    retried = project.ended(project.client.retry(failed.id).id)

    # Then: it says so, and what may have read what it did runs again, too
    assert retried.status is Status.FINISHED
    assert project.told() == 4 + 8
    found = reasons(retried)
    assert found["tell"] == Reason(
        "RAN_AGAIN", f"the code of its steps changed since job {failed.id}, so it ran again"
    )
    said = found["count"]
    assert said is not None
    assert said.text.startswith(
        "what it reads, its parameters, its steps or its time zone changed since job"
    )
    assert duckdb.read_parquet(
        published_files(str(project.folder / "warehouse"), "report")
    ).fetchall() == [(12,)]
