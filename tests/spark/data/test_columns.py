"""Declared columns: frames of Spark, Arrow and pandas are brought to them without loss, or refused
with the value.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.spark.jvm import end_jvm
from unstuck import OutputInvalid, Quality, Settings
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.frames.casts import cast_frame, declared_fields
from unstuck.tasks.frames.output import read_table, stage_table
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.outputs import Checks, OutputSpec
from unstuck.tasks.spec.schemas import joined
from unstuck.tasks.spec.types import parse_type
from unstuck.tasks.steps.work import OutputRules, Work
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

pytestmark = pytest.mark.variant

NOON = datetime.datetime(2013, 7, 1, 12)
DAY = datetime.date(2013, 7, 1)
MIDNIGHT = datetime.datetime(2013, 7, 1)
UTC = datetime.UTC
# What a group's conf may say. None of it may let a value through, or change one.
ODD = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parser.escapedStringLiterals": "true",
}
Write = Callable[..., StagedOutput]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver(Settings(spark_master="local[2]", spark_conf={"spark.ui.enabled": "false"}))
    yield driver
    driver.stop()
    end_jvm()


@pytest.fixture(params=["spark", "spark with an odd conf", "arrow", "pandas"], scope="module")
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """The kind of frame that is written, and its session."""
    if not request.param.startswith("spark"):
        yield request.param, None
        return
    driver = request.getfixturevalue("driver")
    with driver.attempt(
        "job/group/1/n/c", ODD if "odd" in request.param else {"spark.sql.ansi.enabled": "true"}
    ) as session:
        if "odd" in request.param:
            session.conf.set("spark.sql.session.timeZone", "America/New_York")  # as a step may
        yield "spark", session


def frame_of(kind: str, session: Any, root: Path, table: pa.Table) -> Any:
    if kind == "arrow":
        return table
    if kind == "pandas":
        return table.to_pandas(types_mapper=pd.ArrowDtype)
    staged = stage_table(Files(str(root)), "source", table)
    return read_parquet(
        session, [(staged.schema, [str(root / file.path) for file in staged.files])]
    )


@pytest.fixture
def write(kind: tuple[str, Any], tmp_path: Path) -> Write:
    """Writes an Arrow table as a frame of the kind that is tested, to the columns that are
    declared.
    """

    def write(
        table: pa.Table, fill: bool = False, by: tuple[str, ...] = (), **columns: str
    ) -> StagedOutput:
        work = Work(Files(str(tmp_path)), Token("j", "g", 1, "n", "c"), kind[1], {})
        checks = Checks(columns=tuple(columns.items()), fill=fill)
        work.rules = OutputRules({"out": by}, {"out": checks})
        return work.write("out", frame_of(*kind, tmp_path, table))

    return write


def values(root: Path, staged: StagedOutput, column: str) -> list[Any]:
    table = read_table(Files(str(root)), [staged])
    return [row[column] for row in sorted(table.to_pylist(), key=lambda row: row.get("n", 0) or 0)]


def types(staged: StagedOutput) -> dict[str, Any]:
    return {column["name"]: column["type"] for column in json.loads(staged.schema)["fields"]}


KEPT = [
    ("bigint", pa.int32(), [1, None, -5], [1, None, -5]),
    ("tinyint", pa.int64(), [127, -128, None], [127, -128, None]),
    ("double", pa.int64(), [2**53, 2**60, None], [2.0**53, 2.0**60, None]),
    ("int", pa.float64(), [20.0, None, -3.0], [20, None, -3]),
    ("bigint", pa.float64(), [1 - 2.0**53, 2.0**53 - 1, None], [1 - 2**53, 2**53 - 1, None]),
    ("bigint", pa.float32(), [1 - 2.0**24, 2.0**24 - 1, None], [1 - 2**24, 2**24 - 1, None]),
    ("decimal(38, 0)", pa.float64(), [2.0**53 - 1, None, -0.0], [D(2**53 - 1), None, D(0)]),
    ("double", pa.float32(), [2.0**24, None, 2.0**100], [2.0**24, None, 2.0**100]),
    ("float", pa.float64(), [0.5, float("inf"), None], [0.5, float("inf"), None]),
    ("double", pa.float32(), [0.5, None, 1.5], [0.5, None, 1.5]),
    (
        "decimal(12, 4)",
        pa.decimal128(10, 2),
        [D("1.25"), None, D("-3")],
        [D("1.2500"), None, D("-3.0000")],
    ),
    (
        "decimal(4, 1)",
        pa.decimal128(10, 2),
        [D("1.50"), None, D("100.00")],
        [D("1.5"), None, D("100.0")],
    ),
    ("decimal(10, 2)", pa.float64(), [0.1, 12.25, None], [D("0.10"), D("12.25"), None]),
    ("decimal(5, 2)", pa.int64(), [5, None, -999], [D("5.00"), None, D("-999.00")]),
    ("decimal(38, 0)", pa.int64(), [2**63 - 1, -(2**63), None], [D(2**63 - 1), D(-(2**63)), None]),
    ("bigint", pa.decimal128(10, 2), [D("7.00"), None, D("-1")], [7, None, -1]),
    ("double", pa.decimal128(10, 2), [D("1.25"), D("0.10"), None], [1.25, 0.1, None]),
    ("date", pa.timestamp("us"), [MIDNIGHT, None, MIDNIGHT], [DAY, None, DAY]),
    ("timestamp_ntz", pa.date32(), [DAY, None, DAY], [MIDNIGHT, None, MIDNIGHT]),
    ("array<bigint>", pa.list_(pa.int32()), [[1, None], [], None], [[1, None], [], None]),
    (
        "struct<b: double, a: bigint>",
        pa.struct([("a", pa.int32()), ("b", pa.float64())]),
        [{"a": 1, "b": 0.5}, None, {"a": None, "b": None}],
        [{"b": 0.5, "a": 1}, None, {"b": None, "a": None}],
    ),
    ("array<bigint>", pa.list_view(pa.int16()), [[1, None], [], None], [[1, None], [], None]),
    (
        "map<string, bigint>",
        pa.map_(pa.string(), pa.int32()),
        [[("k", 1)], [], None],
        [[("k", 1)], [], None],
    ),
    (
        "array<struct<x: int>>",
        pa.list_(pa.struct([("x", pa.float64())])),
        [[{"x": 2.0}], None, []],
        [[{"x": 2}], None, []],
    ),
    *(
        (text, pa.null(), [None, None, None], [None, None, None])
        for text in ("bigint", "array<string>", "timestamp")
    ),
    *(
        (text, pa.string(), [None, None, None], [None, None, None])
        for text in ("bigint", "map<string, date>", "date")
    ),
]


@pytest.mark.parametrize(("declared", "given", "made", "expected"), KEPT)
def test_matching_values_are_stored_in_the_declared_type(
    write: Write,
    tmp_path: Path,
    declared: str,
    given: pa.DataType,
    made: list[Any],
    expected: list[Any],
) -> None:
    staged = write(
        pa.table({"n": pa.array([1, 2, 3]), "v": pa.array(made, given)}), n="bigint", v=declared
    )

    assert types(staged) == {"n": "long", "v": parse_type(declared)}
    found = values(tmp_path, staged, "v")
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


REFUSED = [
    ("int", pa.float64(), [1.0, 2.5, 3.0], "the double 2.5,", 2),
    ("int", pa.float64(), [1.0, 2.0, float("nan")], "the double nan,", 3),
    ("int", pa.int64(), [1, 2**31, 3], f"the bigint {2**31},", 2),
    ("bigint", pa.float64(), [1.0, 2.0, 2.0**63], "the double 9", 3),
    (
        "bigint",
        pa.float64(),
        [1.0, 2.0**53, None],
        "From 9007199254740992 on, several whole numbers are the same",
        2,
    ),
    ("bigint", pa.float64(), [1.0, -(2.0**53), None], "the double -9", 2),
    ("decimal(38, 2)", pa.float64(), [1.0, None, 2.0**53], "the double 9", 3),
    (
        "bigint",
        pa.float32(),
        [1.0, 2.0**24, None],
        "From 16777216 on, several whole numbers are the same float",
        2,
    ),
    ("int", pa.float32(), [None, None, -(2.0**24)], "the float -1", 3),
    ("decimal(20, 0)", pa.float32(), [2.0**24, None, None], "the float 1", 1),
    (
        "array<bigint>",
        pa.list_(pa.float64()),
        [[1.0], [2.0, 2.0**53], None],
        "v.element is to be bigint",
        2,
    ),
    ("double", pa.int64(), [1, 2**53 + 1, 3], f"the bigint {2**53 + 1},", 2),
    ("double", pa.int64(), [2**63 - 1, 1, 3], f"the bigint {2**63 - 1},", 1),
    ("float", pa.float64(), [0.5, 0.1, 1.0], "the double 0.1,", 2),
    ("float", pa.float64(), [0.5, 1e300, 1.0], "the double 1", 2),
    (
        "decimal(4, 1)",
        pa.decimal128(10, 2),
        [D("1.50"), D("1.25"), None],
        "the decimal(10,2) 1.25,",
        2,
    ),
    ("decimal(3, 2)", pa.float64(), [1.0, 9.999, 2.0], "the double 9.999,", 2),
    ("decimal(3, 2)", pa.int64(), [1, 2, 10], "the bigint 10,", 3),
    ("bigint", pa.decimal128(10, 2), [D("1.00"), D("1.50"), None], "the decimal(10,2) 1.50,", 2),
    (
        "bigint",
        pa.string(),
        [None, "5", "6"],
        "the string 5, which cannot be cast without loss. Text is not parsed",
        2,
    ),
    ("string", pa.int64(), [None, None, 7], "the bigint 7,", 3),
    ("boolean", pa.int64(), [None, 1, 0], "the bigint 1,", 2),
    ("bigint", pa.bool_(), [None, True, None], "the boolean true,", 2),
    (
        "date",
        pa.timestamp("us"),
        [MIDNIGHT, NOON, None],
        "the timestamp_ntz 2013-07-01 12:00:00,",
        2,
    ),
    (
        "timestamp",
        pa.timestamp("us"),
        [None, NOON, None],
        "An instant and a time without a zone are not mixed",
        2,
    ),
    (
        "timestamp_ntz",
        pa.timestamp("us", "UTC"),
        [None, None, NOON.replace(tzinfo=UTC)],
        "the timestamp 2013-",
        3,
    ),
    (
        "date",
        pa.timestamp("us", "UTC"),
        [None, None, NOON.replace(tzinfo=UTC)],
        "the timestamp 2013-",
        3,
    ),
    (
        "array<bigint>",
        pa.list_(pa.float64()),
        [[1.0], [2.0, 2.5], None],
        "v.element is to be bigint",
        2,
    ),
    (
        "struct<x: int>",
        pa.struct([("x", pa.int64())]),
        [{"x": 1}, None, {"x": 2**40}],
        "v.x is to be int",
        3,
    ),
    (
        "map<string, int>",
        pa.map_(pa.string(), pa.float64()),
        [[("k", 1.0)], [("k", 0.5)], None],
        "v.value is to be",
        2,
    ),
    ("array<bigint>", pa.int64(), [None, 3, None], "the bigint 3,", 2),
]


@pytest.mark.parametrize(("declared", "given", "made", "said", "row"), REFUSED)
def test_a_mismatch_is_refused_with_its_column_row_and_value(
    write: Write,
    kind: tuple[str, Any],
    declared: str,
    given: pa.DataType,
    made: list[Any],
    said: str,
    row: int,
) -> None:
    with pytest.raises(OutputInvalid) as refused:
        write(
            pa.table({"n": pa.array([1, 2, 3]), "v": pa.array(made, given)}), n="bigint", v=declared
        )
    text = str(refused.value)
    assert text.replace("NaN", "nan").replace("True", "true").count(said) == 1
    assert "the column v" in text
    assert (
        f"The row: n, v = {{{row}, " if kind[0] == "spark" else f"Row {row} of 3: n = {row}, v = "
    ) in text


def test_the_row_number_of_a_mismatch_counts_all_chunks_of_a_table() -> None:
    pieces = [
        pa.table({"n": numbers, "v": made})
        for numbers, made in (([1, 2], [1.0, 2.0]), ([3, 4, 5], [3.0, 4.5, 5.0]))
    ]
    with pytest.raises(OutputInvalid, match=r"Row 4 of 5: n = 4, v = 4\.5"):
        cast_frame(pa.concat_tables(pieces), declared_fields([("n", "bigint"), ("v", "int")]))


def test_columns_are_matched_by_name_and_written_in_declared_order(
    write: Write, tmp_path: Path
) -> None:
    staged = write(
        pa.table({"Fare": [1.5], "a.b": [1], "n": [1]}),
        **{"n": "bigint", "a.b": "int", "fare": "double"},
    )

    assert types(staged) == {"n": "long", "a.b": "integer", "fare": "double"}
    assert pq.read_schema(tmp_path / staged.files[0].path).names == ["n", "a.b", "fare"]
    assert (values(tmp_path, staged, "fare"), values(tmp_path, staged, "a.b")) == ([1.5], [1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": [1]}, "the frame has the columns n, and columns: declares n, v: it lacks v."),
        (
            {"n": [1], "v": [1], "x y": [1]},
            "the columns n, v, `x y`, and columns: declares n, v: it has `x y` as well.",
        ),
        ({"n": [1], "V2": [1]}, "it lacks v and has V2 as well."),
    ],
)
def test_missing_and_additional_columns_are_refused_with_both_lists(
    write: Write, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(OutputInvalid) as refused:
        write(pa.table(given), n="bigint", v="bigint")
    assert said in str(refused.value)


def test_evolve_fills_a_missing_column_with_nulls_and_refuses_additional_ones(
    write: Write, tmp_path: Path
) -> None:
    staged = write(pa.table({"n": [1]}), fill=True, v="date", n="bigint")
    assert (types(staged), values(tmp_path, staged, "v")) == ({"v": "date", "n": "long"}, [None])

    with pytest.raises(OutputInvalid, match="it has w as well"):
        write(pa.table({"w": [1]}), fill=True, v="date", n="bigint")


def test_a_frame_without_rows_has_the_declared_types(
    write: Write, kind: tuple[str, Any], tmp_path: Path
) -> None:
    empty = pa.table({"v": pa.array([], pa.null()), "n": pa.array([], pa.float64())})
    staged = write(empty, n="string", v="array<date>")
    assert (staged.rows, list(types(staged))) == (0, ["n", "v"])
    assert types(staged)["n"] == "string"

    if kind[0] == "pandas":
        work = Work(Files(str(tmp_path)), Token("j", "g", 1, "n", "c"), None, {})
        work.rules = OutputRules(checks={"other": Checks(columns=(("n", "bigint"),))})
        assert types(work.write("other", pd.DataFrame())) == {"n": "long"}


def test_the_frame_is_evaluated_once_and_rules_use_the_declared_types(
    driver: Driver, tmp_path: Path
) -> None:
    with driver.attempt("job/group/1/n/c", {}) as session:
        seen = session.sparkContext.accumulator(0)

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                seen.add(batch.num_rows)
                yield batch

        frame = (
            session.range(10)
            .selectExpr("cast(id as double) as v")
            .coalesce(1)
            .mapInArrow(counted, "v double")
        )
        quality = Quality(rules={"whole": "typeof(v) = 'bigint' and v < 9"}, max_rejected_ratio=0.2)
        checks = Checks(columns=(("v", "bigint"),), quality=quality)
        made = stage_checked(Files(str(tmp_path)), "out", frame, checks, (), session)
        assert (made["out"].rows, made["out__rejected"].rows, seen.value) == (9, 1, 10)
        assert types(made["out"]) == {"v": "long"}


# -- columns without a type ------------------------------------------------------------------------


TYPED: dict[str, pa.Array] = {
    "bigint": pa.array([2**40]),
    "string": pa.array(["q"]),
    "date": pa.array([DAY]),
    "timestamp": pa.array([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "list": pa.array([["a"]]),
    "struct": pa.array([{"a": 1}]),
    "decimal": pa.array([D("1.5")]),
    "boolean": pa.array([True]),
}


@pytest.mark.parametrize("by", [(), ("x",), ("n",)])
def test_all_readers_read_an_untyped_column_beside_any_type(
    write: Write, driver: Driver, tmp_path: Path, by: tuple[str, ...]
) -> None:
    nulls = write(pa.table({"n": [1], "x": pa.nulls(1)}), by=by)
    assert types(nulls) == {"n": "long", "x": "void"}
    assert values(tmp_path, nulls, "x") == [None]
    assert [file.partition for file in nulls.files] == [
        {column: None if column == "x" else "1" for column in by}
    ]

    for name, array in TYPED.items():
        typed = stage_table(Files(str(tmp_path)), f"typed_{name}", pa.table({"n": [2], "x": array}))
        value, schema = array[0].as_py(), joined(nulls.schema, typed.schema)
        paths = [str(tmp_path / file.path) for file in (*nulls.files, *typed.files)]
        whole = StagedOutput([*nulls.files, *typed.files], 2, schema)
        assert read_table(Files(str(tmp_path)), [whole])["x"].to_pylist() == [None, value]
        by_duckdb = (
            duckdb.read_parquet(paths, union_by_name=True).order("n").select("x").to_arrow_table()
        )
        assert by_duckdb["x"].to_pylist() == [None, value]
        assert pl.concat(map(pl.scan_parquet, paths), how="diagonal").sort("n").collect()[
            "x"
        ].to_list() == [
            None,
            value,
        ]
        unified = pa.unify_schemas([pq.read_schema(path) for path in paths])
        assert ds.dataset(paths, schema=unified).to_table()["x"].to_pylist() == [None, value]
        with driver.attempt("job/reader/1/n/c", {"spark.sql.session.timeZone": "UTC"}) as session:
            frame = read_parquet(session, [(schema, paths)]).orderBy("n")
            assert dict(frame.dtypes)["x"] != "void"
            assert frame.selectExpr("count(x)", "count(*)").first() == (1, 2)


def test_an_all_null_frame_is_stored_and_read_as_nulls(
    write: Write, kind: tuple[str, Any], tmp_path: Path
) -> None:
    staged = write(pa.table({"x": pa.nulls(3), "y": pa.nulls(3)}))
    assert (staged.rows, types(staged)) == (3, {"x": "void", "y": "void"})
    assert read_table(Files(str(tmp_path)), [staged]).to_pylist() == [{"x": None, "y": None}] * 3
    if kind[1] is not None:
        frame = read_parquet(
            kind[1], [(staged.schema, [str(tmp_path / file.path) for file in staged.files])]
        )
        assert [tuple(row) for row in frame.collect()] == [(None, None)] * 3


def test_rules_accept_an_untyped_column(
    write: Write, kind: tuple[str, Any], tmp_path: Path
) -> None:
    quality = Quality(rules={"some": "n > 1", "none": "x is null"}, max_rejected_ratio=1.0)
    frame = frame_of(*kind, tmp_path, pa.table({"x": pa.nulls(2), "n": [1, 2]}))
    made = stage_checked(
        Files(str(tmp_path)), "out", frame, Checks(quality=quality), ("x",), kind[1]
    )
    assert types(made["out"]) == {"x": "void", "n": "long"}
    assert list(types(made["out__rejected"])) == ["x", "n", "_rejected_by"]
    found = read_table(Files(str(tmp_path)), [made["out__rejected"]]).to_pylist()
    assert found == [{"x": None, "n": 1, "_rejected_by": ["some"]}]


@pytest.mark.parametrize("rules", [None, {"some": "id >= 0"}], ids=["no rules", "rules"])
@pytest.mark.parametrize("columns", ["id", ""], ids=["typed", "untyped"])
def test_assertions_on_an_untyped_column_are_checked(
    driver: Driver, tmp_path: Path, columns: str, rules: dict[str, str] | None
) -> None:
    """Nothing of it is written, so Spark would leave it out."""
    checks = Checks(
        quality=None
        if rules is None or not columns
        else Quality(rules=rules, max_rejected_ratio=1.0)
    )
    with driver.attempt("job/group/1/n/c", {}) as session:

        def write(limit: int) -> StagedOutput:
            asserted = f"assert_true(id < {limit}, 'id is too large') AS ok"
            frame = session.range(10).selectExpr(*filter(None, (columns, asserted)))
            return stage_checked(Files(str(tmp_path)), "out", frame, checks, (), session)["out"]

        with pytest.raises(Exception, match="id is too large"):
            write(limit=5)
        made = write(limit=10)
        assert (made.rows, types(made)["ok"]) == (10, "void")


def test_declared_columns_are_parsed_at_submit_and_normalized() -> None:
    spec = OutputSpec.model_validate(
        {"columns": {"b": "BIGINT", "a": "Struct<`x y`: DECIMAL(5), t: timestamp_ltz>"}}
    )
    stored = OutputSpec.model_validate_json(spec.model_dump_json(exclude_unset=True))
    assert list(stored.columns) == ["b", "a"], "the order is kept"
    assert stored == spec
    assert (
        spec.checks
        != OutputSpec.model_validate({"columns": {"a": spec.columns["a"], "b": "BIGINT"}}).checks
    )
