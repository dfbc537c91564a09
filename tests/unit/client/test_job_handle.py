"""What a handle reads: the requested partitions of a dataset, as it stood when its own job was
published.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

import unstuck
from tests.cli.conftest import ByHand
from unstuck import Status
from unstuck.client.job_handle import JobHandle
from unstuck.tasks.frames.output import stage_table
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import Marker, write_marker


def load(hand: ByHand, *rows: tuple[str, int]) -> JobHandle:
    """A finished job that has appended ``rows``, each a day and a number."""
    outputs = {"sales": {"mode": "append", "partition_by": ["day"]}}
    job = hand.submit({"name": "load"}, outputs=outputs, publish=["sales"])
    hand.decide(job)
    token, files = hand.claim(job, "load"), Files(hand.settings.warehouse)
    table = pa.table({"day": [day for day, _ in rows], "n": [number for _, number in rows]})
    made = {"sales": stage_table(files, f"{token.staging}/sales", table, ["day"])}
    write_marker(files, token.staging, Marker(str(token), "same", made, {}, {}, 1.0))
    hand.finish(
        token, Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, rows={"sales": len(rows)})
    )
    assert hand.view(job).status is Status.FINISHED
    return hand.client.job(job)


@pytest.fixture
def jobs(hand: ByHand) -> tuple[JobHandle, JobHandle]:
    """Two jobs that have appended to one dataset, one after the other."""
    return load(hand, ("monday", 1), ("tuesday", 2)), load(hand, ("monday", 3), ("friday", 4))


def test_a_handle_reads_selected_partitions_as_of_its_own_job(
    jobs: tuple[JobHandle, JobHandle],
) -> None:
    first, later = jobs
    monday = {"day": "monday"}
    assert first.read("sales", where=monday).to_pylist() == [{"day": "monday", "n": 1}]
    assert first.read("sales", where={"day": "friday"}).num_rows == 0
    assert later.read("sales", "pandas", where=monday)["n"].tolist() == [1, 3]
    assert sorted(later.read("sales", where={"day": ["friday", "tuesday"]})["n"].to_pylist()) == [
        2,
        4,
    ]
    with duckdb.connect() as connection:
        assert later.read("sales", connection, where=monday).aggregate("sum(n)").fetchall() == [
            (4,)
        ]
    assert [len(job.files("sales", where=monday)) for job in jobs] == [1, 2]
    assert [len(job.files("sales")) for job in jobs] == [2, 4]
    with pytest.raises(ValueError, match="not parted by n, but by day"):
        first.read("sales", where={"n": 1})


def test_reading_with_a_spark_session_accepts_version_and_partitions(
    jobs: tuple[JobHandle, JobHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        """Only what tells a session of Spark from other targets."""

        def createDataFrame(self) -> None: ...

    asked: list[tuple[Any, ...]] = []

    def published(spark: Any, place: Any, dataset: str, version: int, *, where: Any) -> str:
        asked.append((dataset, version, where))
        return "a frame"

    monkeypatch.setattr(unstuck, "published", published)
    for job in jobs:
        assert job.read("sales", Session(), where={"day": "monday"}) == "a frame"
    assert asked == [("sales", 1, {"day": "monday"}), ("sales", 2, {"day": "monday"})]
