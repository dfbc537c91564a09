"""Rules: good and rejected rows are written apart, a frame is evaluated once, and all readers find
the same.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.spark.jvm import end_jvm
from unstuck import (
    ExpectationFailed,
    OutputInvalid,
    Quality,
    RowsOutside,
    RuleInvalid,
    Settings,
    TooManyRejectedRows,
    published,
    published_files,
)
from unstuck.coordinator.publishing.dataset_change import change_of
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.frames.output import read_table, stage
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.frames.refusals import ValueRefused, refused_value
from unstuck.tasks.spec.outputs import Checks, OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import StagedOutput

DAY = datetime.date(2013, 1, 1)
FLIGHTS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, 5], pa.int64()),
        "carrier": pa.array(["AA", None, "UA", "AA", None]),
        "distance": pa.array([100.0, 200.0, -1.0, None, 0.0]),
        "day": pa.array(
            [DAY, DAY, DAY, datetime.date(2013, 1, 2), datetime.date(2013, 1, 3)], pa.date32()
        ),
    }
)
SCHEMA = "id long, carrier string, distance double, day date"
RULES = {"has_distance": "distance > 0", "known_carrier": "carrier is not null"}
Write = Callable[..., tuple[StagedOutput, StagedOutput]]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    driver = Driver(Settings(spark_master="local[2]"))
    # The default since Spark 4.0; without it a cast that fails is null.
    with driver.attempt("job/group/1/n/c", {"spark.sql.ansi.enabled": "true"}) as session:
        yield session
    driver.stop()
    end_jvm()


@pytest.fixture(
    params=["spark", "arrow", pytest.param("arrow in spark", marks=pytest.mark.variant)]
)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    """Writes an Arrow table as a frame of the kind that is tested.

    Returns the good rows and the rejected ones.
    """
    spark = None if request.param == "arrow" else request.getfixturevalue("session")

    def write(
        table: pa.Table = FLIGHTS,
        *by: str,
        rules: dict[str, str] | None = RULES,
        ratio: float = 1.0,
        **checks: Any,
    ) -> tuple[StagedOutput, StagedOutput]:
        frame = table
        if request.param == "spark":
            frame = spark.createDataFrame(
                [tuple(row.values()) for row in table.to_pylist()], SCHEMA
            )
        quality = Quality(rules=rules, max_rejected_ratio=ratio) if rules else None
        made = stage_checked(
            Files(str(tmp_path)), "flights", frame, Checks(quality=quality, **checks), by, spark
        )
        return made["flights"], made["flights__rejected"]

    return write


def rows(root: Path, staged: StagedOutput) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(Files(str(root)), [staged]).to_pylist()
    assert len(found) == staged.rows == sum(file.rows for file in staged.files)
    return sorted(found, key=lambda row: int(row["id"]))


def test_rejected_rows_list_the_rules_they_break(write: Write, tmp_path: Path) -> None:
    good, rejected = write()

    assert [row["id"] for row in rows(tmp_path, good)] == [1]
    assert list(rows(tmp_path, good)[0]) == FLIGHTS.column_names, (
        "the good rows have no column of ours"
    )
    assert {row["id"]: row["_rejected_by"] for row in rows(tmp_path, rejected)} == {
        2: ["known_carrier"],
        3: ["has_distance"],
        4: ["has_distance"],  # null is not above 0
        5: ["has_distance", "known_carrier"],
    }
    assert good.rejected_by == {"has_distance": 3, "known_carrier": 2}
    assert (good.rejected_of, rejected.rejected_of, rejected.rejected_by) == ("", "flights", {})
    for staged in (good, rejected):
        paths = [str(tmp_path / file.path) for file in staged.files]
        assert (
            duckdb.read_parquet(paths).arrow().read_all().num_rows
            == pl.read_parquet(paths).height
            == staged.rows
        )
    folders = {path.name for path in tmp_path.iterdir()}
    assert folders == {"flights", "flights__rejected"}
    assert {
        path.suffix for path in (tmp_path / "flights").iterdir() if not path.name.startswith(".")
    } == {".parquet"}


@pytest.mark.variant
def test_each_row_lists_exactly_the_rules_it_breaks(write: Write, tmp_path: Path) -> None:
    rules = {f"not_{n}": f"id <> {n}" for n in range(1, 13)}
    table = FLIGHTS.slice(0, 1).set_column(0, "id", pa.array([11], pa.int64()))
    good, rejected = write(pa.concat_tables([FLIGHTS, table]), rules=rules)

    assert rows(tmp_path, good) == []
    assert {row["id"]: row["_rejected_by"] for row in rows(tmp_path, rejected)} == {
        n: [f"not_{n}"] for n in (1, 2, 3, 4, 5, 11)
    }


@pytest.mark.variant
def test_without_bad_rows_the_rejected_dataset_is_empty(write: Write, tmp_path: Path) -> None:
    good, rejected = write(rules={"any": "id > 0"}, ratio=0.0)

    assert (good.rows, rejected.rows, good.rejected_by) == (5, 0, {"any": 0})
    (file,) = rejected.files
    assert pq.read_schema(tmp_path / file.path).names == [*FLIGHTS.column_names, "_rejected_by"]


@pytest.mark.variant
def test_a_frame_without_good_rows_is_rejected_completely(write: Write, tmp_path: Path) -> None:
    good, rejected = write(FLIGHTS, "day", rules={"none": "id < 0"})

    assert (good.rows, rejected.rows) == (0, 5)
    assert pq.read_schema(tmp_path / good.files[0].path).names == FLIGHTS.column_names


@pytest.mark.variant
def test_a_frame_without_rows_passes_all_rules(write: Write, tmp_path: Path) -> None:
    good, rejected = write(FLIGHTS.slice(0, 0), ratio=0.0)

    assert (good.rows, rejected.rows) == (0, 0)
    assert rows(tmp_path, good) == rows(tmp_path, rejected) == []


@pytest.mark.variant
def test_good_and_rejected_rows_are_partitioned_by_the_columns_of_the_output(
    write: Write, tmp_path: Path
) -> None:
    good, rejected = write(FLIGHTS, "day", rules={"has_distance": "distance > 0"})

    assert [file.partition for file in good.files] == [{"day": "2013-01-01"}]
    assert sorted(str(file.partition["day"]) for file in rejected.files) == [
        "2013-01-01",
        "2013-01-02",
        "2013-01-03",
    ]
    assert [row["id"] for row in rows(tmp_path, good)] == [1, 2]


@pytest.mark.variant
def test_rows_of_unlisted_partitions_are_rejected(write: Write, tmp_path: Path) -> None:
    named = {
        "partitions": {"day": ("2013-01-01", "2013-01-03"), "carrier": ("AA", None)},
        "outside": "reject",
    }
    good, rejected = write(FLIGHTS, "day", "carrier", rules=None, **named)

    assert [row["id"] for row in rows(tmp_path, good)] == [1, 2, 5], (
        "null is one of the values that are named"
    )
    assert [(row["id"], row["_rejected_by"]) for row in rows(tmp_path, rejected)] == [
        (3, ["outside partitions"]),
        (4, ["outside partitions"]),
    ]
    assert good.rejected_by == {"outside partitions": 2}
    texts = [{"day": ["2013-01-01", "2013-01-03"], "carrier": ["AA", None]}]
    assert good.replaces == rejected.replaces == texts


@pytest.mark.variant
def test_rows_of_unlisted_partitions_are_counted_in_the_error(write: Write) -> None:
    named = {"partitions": {"id": (1, "2")}}
    with pytest.raises(RowsOutside) as raised:
        write(FLIGHTS, "id", rules={"any": "true"}, **named)
    assert "3 of 5 rows of flights are of partitions" in str(raised.value)
    assert "id=3 (1 row), id=4 (1 row), id=5 (1 row). The first one: id=3, carrier=UA" in str(
        raised.value
    )

    with pytest.raises(OutputInvalid, match=r"1\.5' is no value of the column id, of type long"):
        write(FLIGHTS, "id", partitions={"id": ("1.5",)})


@pytest.mark.variant
def test_rows_outside_the_partitions_do_not_count_as_rule_violations(write: Write) -> None:
    named = {"partitions": {"id": (1, 2, 3, 4)}, "outside": "reject"}
    good, rejected = write(FLIGHTS, "id", rules={"any": "true"}, ratio=0.0, **named)

    assert (good.rows, rejected.rows, good.rejected_by) == (
        4,
        1,
        {"any": 0, "outside partitions": 1},
    )


def test_too_many_rejected_rows_are_counted_by_rule(write: Write) -> None:
    says = (
        r"4 of 5 rows of flights were rejected \(80.00%; max_rejected_ratio: 0.79\), by rule: "
        r"has_distance 3, known_"
    )
    with pytest.raises(TooManyRejectedRows, match=says):
        write(ratio=0.79)
    assert write(ratio=0.8)[1].rows == 4, "at the limit is not above it"


@pytest.mark.parametrize(
    "rule",
    [
        "distance >",
        "no_such_column > 0",
        "distance + 1",
        "count(*) > 0",
        "id > 0; DROP TABLE x",
        "nosuch(id)",
    ],
)
def test_an_invalid_condition_is_refused_with_its_name(write: Write, rule: str) -> None:
    with pytest.raises(RuleInvalid, match=r"the rule odd .* cannot be used"):
        write(rules={"fine": "id > 0", "odd": rule})


def test_a_rule_that_fails_on_a_row_is_refused_with_its_name(write: Write) -> None:
    with pytest.raises(RuleInvalid, match="the rule odd "):
        write(rules={"fine": "id > 0", "odd": "cast(carrier as int) > 0"})


@pytest.mark.variant
@pytest.mark.parametrize("rule", ["1 / (id - 1) > 0", "id > 0 and\n 1 / (id - 1) > 0"])
def test_the_cause_of_a_rule_failure_is_named_for_any_spark_error(
    session: Any, tmp_path: Path, rule: str
) -> None:
    """PySpark 3.5 knows no division by zero: its error says where Java was called, and its cause
    what went wrong.
    """
    checks = Checks(quality=Quality(rules={"fine": "id > 0", "odd": rule}))
    session.conf.set("spark.sql.ansi.enabled", "true")
    with pytest.raises(
        RuleInvalid,
        match=r"(?s)the rule odd .* cannot be used: \[DIVIDE_BY_ZERO\] Division by zero",
    ):
        stage_checked(Files(str(tmp_path)), "o", session.range(1, 4), checks, (), session)


@pytest.mark.variant
def test_a_lost_task_is_not_blamed_on_a_rule_quoted_in_its_error(
    session: Any, tmp_path: Path
) -> None:
    """Its trace has the word ok, in "invoke"."""
    from pyspark.sql.functions import col, udf

    frame = (
        session.range(3)
        .withColumn("x", udf(lambda _: os._exit(3), "long")(col("id")))
        .selectExpr("*", "true as ok")
    )
    with pytest.raises(Exception, match="exited unexpectedly") as raised:
        stage_checked(
            Files(str(tmp_path)),
            "o",
            frame,
            Checks(quality=Quality(rules={"fine": "ok"})),
            (),
            session,
        )
    assert not isinstance(raised.value, RuleInvalid)


def test_a_reserved_column_name_is_refused(write: Write, session: Any, tmp_path: Path) -> None:
    checks = Checks(quality=Quality(rules=RULES))
    frame = session.createDataFrame([(1, "x")], "id long, _Rejected_By string")
    with pytest.raises(OutputInvalid, match="has a column _Rejected_By"):
        stage_checked(Files(str(tmp_path)), "out", frame, checks, (), session)


@pytest.fixture
def latin(tmp_path: Path) -> str:
    """Return the path of a text file in ISO-8859-1. Its name is a pattern for Hadoop."""
    names = tmp_path / "names [1] ä.txt"
    names.write_bytes("Ann,1\nZoë,2\nRené,3\n".encode("latin-1"))
    return str(names).replace("[", "\\[").replace("]", "\\]")


@pytest.mark.parametrize("rules", [{}, {"known": "value IS NOT NULL"}])
@pytest.mark.parametrize(
    "change",
    [
        lambda read: read,
        lambda read: read.repartition(2),
        lambda read: read.selectExpr("split(value, ',')[0] AS value"),
        lambda read: read.selectExpr("named_struct('parts', split(value, ',')) AS value"),
        lambda read: read.selectExpr("map(value, 1) AS value"),
    ],
    ids=["plain", "shuffled", "split", "nested", "map key"],
)
def test_text_that_is_not_utf8_is_refused_with_line_and_byte(
    session: Any, tmp_path: Path, latin: str, rules: dict[str, str], change: Callable[[Any], Any]
) -> None:
    checks = Checks(quality=Quality(rules=rules, max_rejected_ratio=1.0) if rules else None)
    frame = change(session.read.text(latin))
    with pytest.raises(Exception) as error:
        stage_checked(Files(str(tmp_path)), "names", frame, checks, (), session)
    message = refused_value(error.value)
    assert "the column value has text of a file that is not UTF-8" in message
    assert "names [1] ä.txt, line 2, byte 3 (0xEB)" in message


def test_text_is_accepted_in_the_encoding_given_by_its_step(
    session: Any, tmp_path: Path, latin: str
) -> None:
    decoded = session.read.text(latin).selectExpr(
        "split(decode(cast(value AS BINARY), 'ISO-8859-1'), ',')[0] AS value"
    )
    staged = stage_checked(Files(str(tmp_path)), "names", decoded, Checks(), (), session)["names"]
    names = read_table(Files(str(tmp_path)), [staged])["value"].to_pylist()
    assert names == ["Ann", "Zoë", "René"]


def test_csv_files_with_replaced_characters_are_refused(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes("Ann,1\nZoë,2\n".encode("latin-1"))
    read = session.read.schema("name string, n int")
    with pytest.raises(ValueRefused, match=r"names\.csv, line 2, byte 3 \(0xEB\)"):
        stage_checked(Files(str(tmp_path)), "out", read.csv(str(path)), Checks(), (), session)

    decoded = read.option("encoding", "ISO-8859-1").csv(str(path))
    staged = stage_checked(Files(str(tmp_path)), "out", decoded, Checks(), (), session)["out"]
    assert read_table(Files(str(tmp_path)), [staged])["name"].to_pylist() == ["Ann", "Zoë"]


def test_a_replacement_character_in_a_file_is_stored(session: Any, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("a \ufffd b\n", encoding="utf-8")
    (tmp_path / "other").mkdir()
    session.range(1).write.parquet(str(tmp_path / "other" / "ids"))
    frame = session.read.text(str(tmp_path / "names.txt")).crossJoin(
        session.read.parquet(str(tmp_path / "other" / "ids"))
    )
    staged = stage_checked(Files(str(tmp_path)), "names", frame, Checks(), (), session)["names"]
    names = read_table(Files(str(tmp_path)), [staged])["value"].to_pylist()
    assert names == ["a \ufffd b"]


@pytest.mark.variant
def test_a_frame_is_evaluated_once(session: Any, tmp_path: Path) -> None:
    """A frame that draws at random: good and rejected rows together are the rows of one drawing."""
    from pyspark.sql.functions import col, rand, udf

    calls = session.sparkContext.accumulator(0)

    counted = udf(lambda value: calls.add(1) or value, "long")
    frame = (
        session.range(0, 2000, 1, 4)
        .withColumn("drawn", rand())
        .withColumn("id", counted(col("id")))
    )
    checks = Checks(
        quality=Quality(rules={"lucky": "drawn > 0.5", "known": "id >= 0"}, max_rejected_ratio=1.0)
    )
    made = stage_checked(Files(str(tmp_path)), "out", frame, checks, (), session)

    good, rejected = (rows(tmp_path, made[name]) for name in ("out", "out__rejected"))
    assert calls.value == 2000
    assert sorted(row["id"] for row in (*good, *rejected)) == list(range(2000))
    assert min(row["drawn"] for row in good) > 0.5 >= max(row["drawn"] for row in rejected)


def test_good_rows_keep_their_order(session: Any, tmp_path: Path) -> None:
    frame = session.range(1000).coalesce(1)
    checks = Checks(quality=Quality(rules={"even": "id % 2 = 0"}, max_rejected_ratio=1.0))
    made = stage_checked(Files(str(tmp_path)), "out", frame, checks, (), session)

    (file,) = made["out"].files
    assert pq.read_table(tmp_path / file.path)["id"].to_pylist() == list(range(0, 1000, 2))


@pytest.mark.variant
def test_columns_of_all_kinds_pass_through_rules(session: Any, tmp_path: Path) -> None:
    frame = session.sql(
        "SELECT id, NULL AS nothing, map('a', id) AS m, array(named_struct('x', 1.5BD)) AS s, "
        "TIMESTAMP '2013-01-01' AS t, TIMESTAMP_NTZ '2013-01-01' AS n, binary('x') AS b FROM "
        "range(4)"
    )
    for number, rule in enumerate(("id > 0", "id >= 0", "id < 0")):
        checks = Checks(quality=Quality(rules={"some": rule}, max_rejected_ratio=1.0), newest="t")
        made = stage_checked(Files(str(tmp_path)), f"out{number}", frame, checks, (), session)
        good, rejected = made.values()
        assert good.rows + rejected.rows == 4
        assert good.newest == (None if not good.rows else 1356998400.0)
        read = published_of(tmp_path, session, f"out{number}", rejected)
        assert read.columns == [*frame.columns, "_rejected_by"]
        assert read.count() == rejected.rows


# -- expectations ----------------------------------------------------------------------------------


@pytest.mark.variant
def test_duplicate_keys_are_shown(write: Write) -> None:
    good, _ = write(unique=("id", "day"))
    assert good.rows == 1
    double = pa.concat_tables([FLIGHTS, FLIGHTS.slice(0, 1)])
    with pytest.raises(
        ExpectationFailed, match=r"1 key of id stands in more than one row: id=1 \(2 rows\)"
    ):
        write(double, unique=("id",))
    with pytest.raises(OutputInvalid, match="there is no column 'no'; the output has id"):
        write(unique=("no",))


MIDNIGHT = datetime.datetime(2013, 1, 1)


@pytest.mark.variant
@pytest.mark.parametrize("value", [DAY, MIDNIGHT, MIDNIGHT.replace(tzinfo=datetime.UTC)])
def test_the_newest_value_is_read_from_the_files(tmp_path: Path, value: datetime.date) -> None:
    files, checks = Files(str(tmp_path)), Checks(newest="day")
    table = pa.table({"id": [1, 2, 3], "day": [value, value - datetime.timedelta(days=9), None]})
    assert stage_checked(files, "out", table, checks, (), None)["out"].newest == 1356998400.0
    nothing = table.filter(pa.array([False, False, True]))
    assert stage_checked(files, "out", nothing, checks, (), None)["out"].newest is None
    with pytest.raises(OutputInvalid, match="the column 'id' is of type"):
        stage_checked(files, "out", table, Checks(newest="id"), (), None)


# -- columns that change ---------------------------------------------------------------------------


def published_of(
    root: Path, session: Any, name: str, *outputs: StagedOutput, spec: OutputSpec | None = None
) -> Any:
    """``outputs``, published one after the other, as Spark reads them."""
    warehouse = Warehouse(str(root / "warehouse"))
    warehouse.ensure_id()
    for number, output in enumerate(outputs):
        job = f"{name}-{number}"

        def package(n: int, state: Any, job: str = job, output: StagedOutput = output) -> Entry:
            change = change_of(name, output, spec or OutputSpec(), state.get(name))
            return Entry(n, n - 1, job, "package", job, job, 1.0, datasets={name: change})

        warehouse.append(job, 0, package)
    (root / "warehouse" / "_staging").mkdir(exist_ok=True)
    for output in outputs:
        for file in output.files:
            target = root / "warehouse" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.write_bytes((root / file.path).read_bytes())
    return published(session, warehouse, name)


@pytest.mark.variant
@pytest.mark.parametrize("kind", ["spark", "arrow"])
def test_readers_find_nulls_for_a_column_missing_in_an_older_file(
    kind: str, session: Any, tmp_path: Path
) -> None:
    files = Files(str(tmp_path))
    tables = [
        pa.table({"id": [1], "gone": ["x"], "kept": [1.5]}),
        pa.table({"kept": [2.5], "id": [2], "tags": [["a"]]}),
    ]
    frames = (
        tables
        if kind == "arrow"
        else [
            session.createDataFrame(
                [tuple(row.values()) for row in table.to_pylist()], table.column_names
            )
            for table in tables
        ]
    )
    staged = [stage(files, f"out{number}", frame) for number, frame in enumerate(frames)]
    frame = published_of(
        tmp_path, session, "out", *staged, spec=OutputSpec(mode="append", on_schema_change="evolve")
    )

    truth = [
        {"id": 1, "gone": "x", "kept": 1.5, "tags": None},
        {"id": 2, "gone": None, "kept": 2.5, "tags": ["a"]},
    ]
    assert [row.asDict() for row in frame.orderBy("id").collect()] == truth
    paths = published_files(str(tmp_path / "warehouse"), "out")
    by_duckdb = (
        duckdb.read_parquet(paths, union_by_name=True).order("id").to_arrow_table().to_pylist()
    )
    by_polars = (
        pl.concat(map(pl.scan_parquet, paths), how="diagonal").sort("id").collect().to_dicts()
    )
    unified = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in paths])
    by_arrow = ds.dataset(paths, schema=unified).to_table().sort_by("id").to_pylist()
    assert by_duckdb == by_polars == by_arrow == truth
