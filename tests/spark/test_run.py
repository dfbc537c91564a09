"""Jobs with Spark groups in one process: one session for all of them, and streams that go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps.small_steps import three
from unstuck import Job, Settings, Status
from unstuck.in_process.run_job import InProcess, JobResult
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow

SLEEP = "SELECT java_method('java.lang.Thread', 'sleep', 600000L) FROM range(1)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(Settings(spark_master="local[2]"), temporary=tmp_path_factory.mktemp("spark"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def here(tmp_path: Path, driver: Driver) -> Iterator[InProcess]:
    with InProcess(tmp_path / "warehouse", driver=lambda: driver) as made:
        yield made


def rows(here: InProcess, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_arrow(Warehouse(here.settings.warehouse), name).to_pylist()
    return found


def sql(name: str, statement: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "needs": list(needs),
        "steps": [{"sql": statement, "output": name}],
        **more,
    }


def test_groups_with_and_without_spark_read_outputs_of_each_other(here: InProcess) -> None:
    job = Job("mixed", params={"by": 2})
    job.group(output="three", spark=False)(three)
    job.sql("more", "SELECT n * :by AS n FROM three", needs=["three"], output="more")
    job.sql("total", "SELECT sum(n) AS n FROM more", needs=["more"], output="total")
    ended = here.run(job, params={"by": 3})
    assert ended.finished, ended.why()
    assert rows(here, "total") == [{"n": 18}]


def test_quality_rules_work_as_in_a_fleet(here: InProcess) -> None:
    outputs = {"n": {"expect": {"rows": {"min": 5}}}}
    ended = here.run(
        {"name": "few", "groups": [sql("n", "SELECT id FROM range(3)")], "outputs": outputs}
    )
    assert ended.status is Status.FAILED
    assert "expect.rows: 3 rows, and at least 5 are expected" in ended.why()


@pytest.mark.variant
def test_a_query_that_exceeds_its_timeout_is_canceled_and_the_session_survives(
    here: InProcess,
) -> None:
    slow = sql("slow", SLEEP, timeout="1s", retry={"max": 0})
    assert "TIMEOUT" in here.run({"name": "slow", "groups": [slow]}).why()
    assert here.run({"name": "quick", "groups": [sql("n", "SELECT 1 AS n")]}).finished


def test_a_stream_continues_at_the_last_published_position(here: InProcess, tmp_path: Path) -> None:
    arriving = tmp_path / "arriving"
    arriving.mkdir()
    stream = {"stream": str(arriving), "format": "json", "schema": "n BIGINT"}
    load = sql("loaded", "SELECT * FROM events", inputs={"events": stream})
    job = {"name": "load", "groups": [load], "outputs": {"loaded": {"mode": "append"}}}
    for number in (1, 2):
        (arriving / f"{number}.json").write_text(f'{{"n": {number}}}\n')
        ended = here.run(job)
        assert ended.finished, ended.why()
        assert ended.view.published == {"loaded": 1}
    assert sorted(row["n"] for row in rows(here, "loaded")) == [1, 2]


def test_a_partial_run_reads_the_published_outputs_of_other_groups(here: InProcess) -> None:
    job = {
        "name": "parts",
        "publish": ["days", "total"],
        "groups": [
            sql("days", "SELECT explode(array(1, 2, 3)) AS day"),
            sql("total", "SELECT sum(day) AS n FROM days", "days"),
        ],
    }
    assert here.run(job, until=["days"]).view.published == {"days": 3}
    assert here.run(job, from_=["total"]).view.published == {"total": 1}
    assert rows(here, "total") == [{"n": 6}]


def test_a_job_may_run_in_a_thread_other_than_the_main_thread(here: InProcess) -> None:
    ended: list[JobResult] = []
    job = {"name": "n", "groups": [sql("n", "SELECT 1 AS n")]}
    thread = threading.Thread(target=lambda: ended.append(here.run(job)))
    thread.start()
    thread.join()
    assert ended[0].finished
