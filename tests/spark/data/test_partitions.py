"""Partitions: each file has the rows of one, the columns stay in the files, and all readers find
the same.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.spark.jvm import end_jvm
from unstuck import OutputInvalid, Settings
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.frames.output import stage
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.partitions import arrow_named, spark_named
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

pytestmark = pytest.mark.variant

DAY = datetime.date(2013, 1, 1)
ROWS = pa.table(
    {
        "day": pa.array([DAY, DAY, datetime.date(2013, 1, 2), None, DAY], pa.date32()),
        "carrier": pa.array(["A/A", "", "x=y é%", "n", None]),
        "late": pa.array([True, False, None, True, True]),
        "flights": pa.array([1, 2, 3, 4, 5], pa.int64()),
    }
)
Make = Callable[[pa.Table], Any]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    driver = Driver(Settings(spark_master="local[2]"))
    with driver.attempt("job/group/1/n/c", {}) as session:
        yield session
    driver.stop()
    end_jvm()


@pytest.fixture(params=["spark", "arrow", "pandas"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a frame of the kind that is tested."""
    if request.param == "spark":
        session = request.getfixturevalue("session")
        return lambda table: session.createDataFrame(
            table.to_pylist(), "day date, carrier string, late boolean, flights long"
        )
    return (lambda table: table.to_pandas()) if request.param == "pandas" else (lambda table: table)


def parts(root: Path, staged: StagedOutput) -> dict[tuple[str | None, ...], list[int]]:
    """The flights of each partition, from its files."""
    found: dict[tuple[str | None, ...], list[int]] = {}
    for file in staged.files:
        rows = pq.read_table(root / file.path, partitioning=None)
        assert file.rows == len(rows)
        found.setdefault(tuple(file.partition.values()), []).extend(rows["flights"].to_pylist())
    return {values: sorted(flights) for values, flights in found.items()}


def test_each_file_has_the_rows_of_one_partition(tmp_path: Path, make: Make) -> None:
    staged = stage(Files(str(tmp_path)), "out", make(ROWS), ["day"])

    assert parts(tmp_path, staged) == {
        ("2013-01-01",): [1, 2, 5],
        ("2013-01-02",): [3],
        (None,): [4],
    }
    assert staged.rows == 5
    assert {"day"} == {name for file in staged.files for name in file.partition}
    assert sorted(file.path for file in staged.files) == sorted(
        f"out/{path.name}" for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")
    ), "nothing else is left in the folder"


def test_any_text_can_be_a_partition_value(tmp_path: Path, make: Make) -> None:
    staged = stage(Files(str(tmp_path)), "out", make(ROWS), ["carrier", "flights"])

    assert parts(tmp_path, staged) == {
        ("A/A", "1"): [1],
        ("", "2"): [2],
        ("x=y é%", "3"): [3],
        ("n", "4"): [4],
        (None, "5"): [5],
    }


def test_all_readers_find_the_written_columns(tmp_path: Path, make: Make) -> None:
    staged = stage(Files(str(tmp_path)), "out", make(ROWS), ["day", "carrier"])
    paths = [str(tmp_path / file.path) for file in staged.files]
    expected = ROWS.sort_by("flights").to_pylist()

    assert [c["name"] for c in json.loads(staged.schema)["fields"]] == ROWS.column_names
    assert duckdb.read_parquet(paths).order("flights").arrow().read_all().to_pylist() == expected
    assert pl.read_parquet(paths).sort("flights").to_dicts() == expected
    assert list(pd.concat(map(pd.read_parquet, paths)).columns) == ROWS.column_names


@pytest.mark.parametrize(
    ("named", "flights"),
    [
        ({"day": ["2013-01-01"]}, [1, 2, 5]),
        ({"day": [None]}, [4]),
        ({"day": ["2013-01-02", None]}, [3, 4]),
        ({"day": ["2013-01-01"], "carrier": ["", None]}, [2, 5]),
        ({"day": [None], "carrier": ["A/A", None]}, []),
    ],
)
def test_rows_must_belong_to_listed_partitions_including_null(
    session: Any, named: dict[str, list[str | None]], flights: list[int]
) -> None:
    assert ROWS.filter(arrow_named(ROWS, named))["flights"].to_pylist() == flights
    frame = session.createDataFrame(
        ROWS.to_pylist(), "day date, carrier string, late boolean, flights long"
    )
    assert [row.flights for row in frame.filter(spark_named(named)).collect()] == flights
    outside = frame.filter(~spark_named(named)).collect()
    assert sorted([*flights, *(row.flights for row in outside)]) == [1, 2, 3, 4, 5], (
        "each is in or out"
    )


def test_an_output_without_rows_has_its_columns(tmp_path: Path, make: Make) -> None:
    staged = stage(Files(str(tmp_path)), "out", make(ROWS.slice(0, 0)), ["late"])

    assert [(file.rows, file.partition) for file in staged.files] == [(0, {})]
    assert [c["name"] for c in json.loads(staged.schema)["fields"]] == ROWS.column_names


def test_a_column_without_values_can_be_a_partition_key(tmp_path: Path, make: Make) -> None:
    nothing = pa.table(
        {
            "day": pa.array([None, None], pa.date32()),
            "carrier": ["A", "B"],
            "late": [True, True],
            "flights": [1, 2],
        }
    )
    staged = stage(Files(str(tmp_path)), "out", make(nothing), ["day", "carrier"])
    assert parts(tmp_path, staged) == {(None, "A"): [1], (None, "B"): [2]}


def test_an_untyped_pandas_frame_is_an_output_without_rows(tmp_path: Path) -> None:
    staged = stage(Files(str(tmp_path)), "out", pd.DataFrame(columns=["day", "flights"]), ["day"])
    assert (staged.rows, [file.partition for file in staged.files]) == (0, [{}])


def test_a_second_attempt_removes_everything_of_the_first(tmp_path: Path, make: Make) -> None:
    files = Files(str(tmp_path))
    stage(files, "out", make(ROWS), ["carrier"])
    staged = stage(files, "out", make(ROWS.slice(0, 1)), ["carrier"])

    assert [file.path for file in staged.files] == ["out/part-00000.parquet"]
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == ["part-00000.parquet"]


@pytest.mark.parametrize(
    ("column", "said"), [("month", "there is no column 'month'"), ("delay", "is of type")]
)
def test_a_column_that_cannot_be_a_partition_key_is_refused(
    tmp_path: Path, column: str, said: str
) -> None:
    table = ROWS.append_column("delay", pa.array([1.5] * 5))
    with pytest.raises(OutputInvalid, match=said):
        stage(Files(str(tmp_path)), "out", table, [column])


def test_many_small_files_are_read_in_few_tasks_without_foreign_files(
    tmp_path: Path, session: Any
) -> None:
    """Spark's own defaults begin a task for each file to look at it, and one more to read 32 of
    them.
    """
    files = {}
    for n in range(300):
        (folder := tmp_path / f"{n}").mkdir()
        for name in ("part.parquet", "other.parquet"):
            pq.write_table(pa.table({"n": pa.array([n], pa.int64())}), folder / name)
        files[f"{folder}/part.parquet"] = (folder / "part.parquet").stat().st_size
    schema = session.createDataFrame([], "n long").schema.json()
    context = session.sparkContext
    tracker, tag = context.statusTracker(), context.getLocalProperty("spark.jobGroup.id")
    before = set(tracker.getJobIdsForGroup(tag))
    rows = read_parquet(session, [(schema, files)]).collect()
    assert sorted(row.n for row in rows) == list(range(300))
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(tag)) - before]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    assert 1 <= sum(stage.numTasks for stage in stages) <= 4
