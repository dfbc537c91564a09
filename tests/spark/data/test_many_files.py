"""An input of many files: shown to steps without a look at any of them, and read whole whatever the
conf says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.support.spark.jvm import end_jvm
from unstuck import Settings
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.frames.output import stage
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.steps.step_inputs import Dataset
from unstuck.tasks.steps.work import Work
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

pytestmark = pytest.mark.variant

COUNT = 40
IN_ORDER = [(number, f"{number % 3}/ä %2F") for number in range(COUNT)]
# By the first, Spark passes over the list that it is given; by the second it can read none from
# this file system.
AGAINST_LISTS = {
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
}
PASSING_OVER = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    temporary = tmp_path_factory.mktemp("runner")
    driver = Driver(
        Settings(spark_master="local[2]", spark_conf={"spark.ui.enabled": "false"}),
        temporary=temporary,
    )
    driver.start()
    yield driver
    assert not list(temporary.glob("list-*"))
    driver.stop()
    end_jvm()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Dataset]:
    files = Files(str(tmp_path_factory.mktemp("ware house %20 ä")))
    parts: list[StagedOutput] = []
    for number, name in IN_ORDER:
        table = pa.table({"number": [number], "name": [name]})
        parts.append(stage(files, f"_staging/x/{number}", table, ["name"]))
    return files, Dataset("x", tuple(parts))


def work_of(many: tuple[Files, Dataset], session: Any) -> Work:
    files, dataset = many
    return Work(files, Token.parse("j/g/1/n/w"), session, {"x": dataset})


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.select("number", "name").collect()))


def test_an_input_of_many_files_is_listed_without_reading_and_read_completely(
    driver: Driver, many: tuple[Files, Dataset]
) -> None:
    with driver.attempt("many", {}) as session:
        work = work_of(many, session)
        work.show("x")
        assert not session.sparkContext.statusTracker().getJobIdsForGroup("many")
        in_a_query = "explode((SELECT collect_list(struct(*)) FROM x)) AS row"
        asked: dict[str, Any] = {  # each way in which a step can ask for it
            "input": work.read("x"),
            "sql": session.sql("SELECT * FROM `X`"),
            "table": session.table("x"),
            "read": session.read.table("x"),
            "expression": session.range(1).selectExpr(in_a_query).select("row.*"),
        }
        session.sql("REFRESH TABLE x")
        session.catalog.refreshByPath(many[0].uri(""))
        asked["refreshed"] = session.sql("SELECT * FROM x")
        assert {way: rows_of(frame) for way, frame in asked.items()} == dict.fromkeys(
            asked, IN_ORDER
        )
        assert {unquote(uri) for uri in asked["input"].inputFiles()} == {
            f"file://{path}" for path in paths_of(many)
        }


def paths_of(many: tuple[Files, Dataset]) -> list[str]:
    files, dataset = many
    return [files.uri(file.path) for part in dataset.parts for file in part.files]


@pytest.mark.parametrize("count", [2, COUNT])
@pytest.mark.parametrize("damage", ["gone", "gone once it was shown", "cut"])
@pytest.mark.parametrize("with_spark", [True, False])
def test_a_conf_that_skips_files_loses_no_file_of_a_dataset(
    driver: Driver, tmp_path: Path, count: int, damage: str, with_spark: bool
) -> None:
    files = Files(str(tmp_path))
    tables = [pa.table({"number": [number]}) for number in range(count)]
    parts = tuple(
        stage(files, f"_staging/x/{number}", table) for number, table in enumerate(tables)
    )
    path = Path(files.uri(parts[1].files[0].path))
    with driver.attempt("conf", PASSING_OVER) as session:
        work = work_of((files, Dataset("x", parts)), session if with_spark else None)

        def read() -> None:
            frame = work.read("x")
            if damage == "gone once it was shown":
                path.unlink()
            if with_spark:
                frame.count()

        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:-20])
        elif not with_spark:
            return  # all rows are in memory by then
        with pytest.raises(Exception, match=f"{path.parent.name}/{path.name}"):
            read()


@pytest.mark.parametrize("key", AGAINST_LISTS)
def test_a_conf_that_disables_file_lists_loses_no_row(
    driver: Driver, many: tuple[Files, Dataset], key: str
) -> None:
    with driver.attempt("conf", {key: AGAINST_LISTS[key]}) as session:
        assert rows_of(work_of(many, session).read("x")) == IN_ORDER


def test_the_file_list_keeps_the_address_of_an_azure_container(driver: Driver) -> None:
    files = {
        f"abfss://container@account.dfs.core.windows.net/w/{number}.parquet": 10
        for number in range(COUNT)
    }
    with driver.attempt("azure", {}) as session:
        frame = read_parquet(session, [(StructType([StructField("n", LongType())]).json(), files)])
        assert set(frame.inputFiles()) == set(files)
