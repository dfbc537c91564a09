"""Every type, from every writer to every reader: equal, or refused before it is written. One Spark
session for all.

All columns that a writer may store are written and read as one output, so the cells cost one job
each and not many.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types
from pyspark.sql.functions import lit

from tests.support.spark.jvm import end_jvm
from unstuck import OutputInvalid, Quality, Settings, published, published_files
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.frames.output import stage
from unstuck.tasks.frames.quality import stage_checked
from unstuck.tasks.protocol.failure import failure_of
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.outputs import Checks
from unstuck.tasks.steps.step_inputs import Dataset
from unstuck.tasks.steps.work import Work
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import StagedOutput

pytestmark = pytest.mark.variant

UTC = datetime.UTC
D = decimal.Decimal
# As a group's conf may have it. None of it may change what is stored.
CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.binaryAsString": "true",
}


def at(*parts: int, zone: datetime.tzinfo | None = None) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=zone)  # type: ignore[arg-type, misc]


EARLY, LATE = at(1, 1, 2, 3, 4, 5, 6), at(9999, 12, 30, 23, 59, 59, 999_999)
EARLY_UTC, LATE_UTC = EARLY.replace(tzinfo=UTC), LATE.replace(tzinfo=UTC)
DAYS = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]
NOON, NEW_YEAR = at(2013, 7, 1, 12), at(2300, 1, 1)
NOON_UTC, NEW_YEAR_UTC = NOON.replace(tzinfo=UTC), NEW_YEAR.replace(tzinfo=UTC)
BIG, SMALL = (
    D("12345678901234567890123456789012345678"),
    D("-12345678901234567890123456789012345678"),
)


@dataclass(frozen=True)
class Column:
    """Three values as they are written, and as all readers must find them."""

    written: Any
    read: list[Any]


def arrow(kind: pa.DataType, *values: Any, read: list[Any] | None = None) -> Column:
    return Column(pa.array([*values, None], kind), read or [*values, None])


def ints(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def encoded(array: pa.Array) -> pa.Array:
    return array.dictionary_encode()


IN_ARROW: dict[str, Column] = {
    **{f"int{n}": arrow(getattr(pa, f"int{n}")(), *ints(n)) for n in (8, 16, 32, 64)},
    **{f"uint{n}": arrow(getattr(pa, f"uint{n}")(), 0, 2**n - 1) for n in (8, 16, 32)},
    "uint64": arrow(pa.uint64(), 0, 2**63 - 1),
    "float16": arrow(pa.float16(), 1.5, float("-inf")),
    "float32": arrow(pa.float32(), 0.5, float("nan")),
    "float64": arrow(pa.float64(), -0.0, 5e-324),
    "decimal32": arrow(pa.decimal32(9, 2), D("1.50"), D("-1234567.89")),
    "decimal64": arrow(pa.decimal64(18, 0), D(10**17), D(-1)),
    "decimal128": arrow(pa.decimal128(38, 0), BIG, SMALL),
    "decimal128_scaled": arrow(pa.decimal128(38, 38), D("0.1"), D("-0.2")),
    "decimal256": arrow(pa.decimal256(38, 2), D("1.25"), D("-0.01")),
    "bool": arrow(pa.bool_(), True, False),
    "string": arrow(pa.string(), "", "Zürich \0 \U0001f600"),
    "large_string": arrow(pa.large_string(), "a", "b"),
    "string_view": arrow(pa.string_view(), "a", "a text of more than twelve bytes"),
    "binary": arrow(pa.binary(), b"", b"\0\xff"),
    "large_binary": arrow(pa.large_binary(), b"a", b"\xff"),
    "binary_view": arrow(pa.binary_view(), b"a", b"\xff"),
    "fixed_binary": arrow(pa.binary(2), b"ab", b"\0\xff"),
    "date32": Column(pa.array(DAYS, pa.date32()), DAYS),
    "date64": Column(pa.array(DAYS, pa.date64()), DAYS),
    "timestamp_s": arrow(pa.timestamp("s"), NOON, NEW_YEAR),
    "timestamp_ms": arrow(pa.timestamp("ms"), NOON, NEW_YEAR),
    "timestamp_us": arrow(pa.timestamp("us"), EARLY, LATE),
    "timestamp_ns": arrow(pa.timestamp("ns"), NOON, at(1970, 1, 1, 0, 0, 0, 1)),
    "instant_s": arrow(pa.timestamp("s", "UTC"), NOON_UTC, NEW_YEAR_UTC),
    "instant_ms": arrow(pa.timestamp("ms", "Asia/Tokyo"), NOON_UTC, NEW_YEAR_UTC),
    "instant_us": arrow(pa.timestamp("us", "UTC"), EARLY_UTC, LATE_UTC),
    "instant_ns": arrow(
        pa.timestamp("ns", "Europe/Berlin"), NOON_UTC, at(1970, 1, 1, 0, 0, 0, 1, zone=UTC)
    ),
    "list": arrow(pa.list_(pa.int64()), [1, None], []),
    "large_list": arrow(pa.large_list(pa.uint8()), [255], []),
    "fixed_list": arrow(pa.list_(pa.float32(), 2), [0.5, 1.5], [2.5, None]),
    "list_view": arrow(pa.list_view(pa.string()), ["a"], []),
    "list_of_timestamps": arrow(pa.list_(pa.timestamp("ns")), [NOON], [None]),
    "struct": arrow(
        pa.struct([("n", pa.uint16()), ("at", pa.timestamp("ns", "Asia/Tokyo"))]),
        {"n": 65535, "at": NOON_UTC},
        {"n": None, "at": None},
    ),
    "map": arrow(pa.map_(pa.string(), pa.timestamp("ns")), [("a", NOON), ("b", None)], []),
    "maps_with_one_key": arrow(pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", 1)]),
    "map_by_structs": arrow(
        pa.map_(pa.struct({"k": pa.int8()}), pa.int64()), [({"k": 1}, 1), ({"k": 2}, 1)], []
    ),
    "list_of_maps": arrow(pa.list_(pa.map_(pa.int8(), pa.list_(pa.float16()))), [[(1, [0.5])]], []),
    "dictionary": Column(encoded(pa.array(["b", "a", None])), ["b", "a", None]),
    "dictionary_of_timestamps": Column(
        encoded(pa.array([NOON, NOON, None], pa.timestamp("ns"))), [NOON, NOON, None]
    ),
    "list_of_dictionaries": Column(
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 2]), encoded(pa.array(["b", "a"]))),
        [["b"], ["a"], []],
    ),
    "list_of_nulls": arrow(pa.list_(pa.null()), [None], []),
    "map_of_nulls": arrow(pa.map_(pa.string(), pa.null()), [("a", None)], []),
    "struct_of_nulls": arrow(
        pa.struct([("n", pa.null()), ("l", pa.list_(pa.list_(pa.null())))]),
        {"n": None, "l": [[None], [], None]},
        {"n": None, "l": None},
    ),
}


def pandas(kind: Any, *values: Any, read: list[Any] | None = None) -> Column:
    return Column(pd.Series([*values], dtype=kind), read or [*values])


IN_PANDAS: dict[str, Column] = {
    **{f"int{n}": pandas(f"int{n}", 0, *ints(n)) for n in (8, 16, 32, 64)},
    **{f"nullable_int{n}": pandas(f"Int{n}", 1, ints(n)[0], None) for n in (8, 16, 32, 64)},
    **{f"uint{n}": pandas(f"uint{n}", 0, 1, 2**n - 1) for n in (8, 16, 32)},
    "float16": pandas("float16", 0.5, 1.5, -2.0),
    "float32": pandas("float32", 0.5, 1.5, float("-inf")),
    "float64": pandas("float64", 0.1, float("nan"), float("inf"), read=[0.1, None, float("inf")]),
    "bool": pandas("bool", True, False, True),
    "boolean": pandas("boolean", True, False, None),
    "text": pandas("object", "a", "", None),
    "string": pandas("string", "a", "", None),
    "pyarrow_string": pandas("string[pyarrow]", "a", "", None),
    "bytes": pandas("object", b"a", b"\xff", None),
    "integers": pandas("object", 2**63 - 1, -(2**63), None),
    "decimals": pandas("object", D("1.5"), D("-12345678901234567890.25"), None),
    "dates": pandas("object", *DAYS),
    "datetime_s": pandas("datetime64[s]", NOON, NEW_YEAR, None),
    "datetime_ms": pandas("datetime64[ms]", NOON, NEW_YEAR, None),
    "datetime_us": pandas("datetime64[us]", NOON, NEW_YEAR, None),
    "datetime_ns": pandas("datetime64[ns]", NOON, at(1970, 1, 1, 0, 0, 0, 1), None),
    "datetime_zone": pandas(
        "datetime64[ns, America/New_York]", NOON_UTC, at(1970, 1, 1, zone=UTC), None
    ),
    "datetime_objects": pandas("object", EARLY, LATE, None),
    "zoned_objects": pandas("object", EARLY_UTC, LATE_UTC, None),
    "categorical": pandas("category", "b", "a", None),
    "categorical_numbers": pandas(pd.CategoricalDtype([3, 1], ordered=True), 3, 1, 3),
    "lists": pandas("object", [1, None], [], None),
    "arrays": pandas("object", np.array([1, 2], "uint8"), None, None, read=[[1, 2], None, None]),
    "structs": pandas("object", {"n": 1, "t": "a"}, {"n": None, "t": None}, None),
}

# Of each column three expressions; the reader sorts by the row.
IN_SPARK: dict[str, Column] = {
    "byte": Column(["cast(-128 as tinyint)", "127Y", "null"], [-128, 127, None]),
    "short": Column(["cast(-32768 as smallint)", "32767S", "null"], [*ints(16), None]),
    "integer": Column(["cast(-2147483648 as int)", "2147483647", "null"], [*ints(32), None]),
    "long": Column(
        ["-9223372036854775807L - 1L", "9223372036854775807L", "null"], [*ints(64), None]
    ),
    "float": Column(["float(0.5)", "float('nan')", "null"], [0.5, float("nan"), None]),
    "double": Column(["-0.0d", "5e-324d", "null"], [-0.0, 5e-324, None]),
    "decimal_9": Column(
        ["1.50bd", "cast(-1234567.89 as decimal(9,2))", "null"], [D("1.50"), D("-1234567.89"), None]
    ),
    "decimal_18": Column(
        ["cast(1 as decimal(18,3))", "-1.125bd", "null"], [D(1), D("-1.125"), None]
    ),
    "decimal_38": Column([f"{BIG}bd", f"{SMALL}bd", "null"], [BIG, SMALL, None]),
    "boolean": Column(["true", "false", "null"], [True, False, None]),
    "string": Column(["''", "'Zürich'", "null"], ["", "Zürich", None]),
    "char": Column(["cast('a' as char(3))", "'b'", "null"], ["a", "b", None]),
    "collated": Column(
        ["'a' collate utf8_lcase", "'B' collate utf8_lcase", "null"], ["a", "B", None]
    ),
    "binary": Column(["X''", "X'00ff'", "null"], [b"", b"\0\xff", None]),
    "date": Column(["date'0001-01-01'", "date'9999-12-31'", "null"], DAYS),
    "timestamp": Column(
        [f"timestamp'{EARLY_UTC}'", f"timestamp'{LATE_UTC}'", "null"], [EARLY_UTC, LATE_UTC, None]
    ),
    "timestamp_ntz": Column(
        [f"timestamp_ntz'{EARLY}'", f"timestamp_ntz'{LATE}'", "null"], [EARLY, LATE, None]
    ),
    "array": Column(["array(1, null)", "array()", "null"], [[1, None], [], None]),
    "array_of_timestamps": Column(
        [f"array(timestamp'{NOON_UTC}')", "array(null)", "null"], [[NOON_UTC], [None], None]
    ),
    "struct": Column(
        ["named_struct('n', 1, 't', 'a')", "named_struct('n', null, 't', null)", "null"],
        [{"n": 1, "t": "a"}, {"n": None, "t": None}, None],
    ),
    "array_of_voids": Column(["array(null)", "array()", "null"], [[None], [], None]),
    "map_of_voids": Column(["map()", "map()", "null"], [[], [], None]),
    "struct_of_void": Column(
        ["named_struct('type', null)", "named_struct('type', null)", "null"],
        [{"type": None}, {"type": None}, None],
    ),
    "map": Column(
        [f"map('a', timestamp_ntz'{NOON}', 'b', null)", "map()", "null"],
        [[("a", NOON), ("b", None)], [], None],
    ),
}

EVERY = {"arrow": IN_ARROW, "pandas": IN_PANDAS, "spark": IN_SPARK}
# Columns of Spark that not every PySpark has, and what its types have if it does.
NEWER = {
    **dict.fromkeys(("collated", "variant", "calendar", "empty_struct"), "VariantType"),
    "time": "TimeType",
}


def is_known(writer: str, column: str) -> bool:
    return writer != "spark" or column not in NEWER or hasattr(types, NEWER[column])


KEPT = {
    writer: {name: column for name, column in columns.items() if is_known(writer, name)}
    for writer, columns in EVERY.items()
}


# -- writing and reading ---------------------------------------------------------------------------


@dataclass
class ValueWarehouse:
    """A warehouse, the session of an attempt, and what was written and read there."""

    files: Files
    session: Any
    read: dict[tuple[str, str], dict[str, list[Any]]] = field(default_factory=dict)

    def write(self, name: str, frame: Any) -> StagedOutput:
        return stage(self.files, f"_staging/j/g/1-n-c/{name}", frame)

    def frame(self, writer: str, columns: Mapping[str, Any]) -> Any:
        columns = {"row": ["0", "1", "2"] if writer == "spark" else [0, 1, 2], **columns}
        if writer == "arrow":
            return pa.table(columns)
        if writer == "pandas":
            return pd.DataFrame(columns)
        rows = [
            ", ".join(f"{values[row]} as `{name}`" for name, values in columns.items())
            for row in range(3)
        ]
        return self.session.sql(" union all ".join(f"select {row}" for row in rows))

    @functools.cached_property
    def staged(self) -> dict[str, StagedOutput]:
        """Of each writer one output with all of its columns, published under the name of the
        writer.
        """
        staged = {
            writer: self.write(
                writer, self.frame(writer, {name: c.written for name, c in columns.items()})
            )
            for writer, columns in KEPT.items()
        }
        self.publish("j", staged)
        return staged

    def publish(self, job: str, staged: Mapping[str, StagedOutput]) -> None:
        changes = {
            name: Change("replace", one.files, [], one.rows, one.schema)
            for name, one in staged.items()
        }
        make = functools.partial(
            Entry, publish_id=job, kind="package", job=job, job_name=job, at=0.0, tokens=[]
        )
        Warehouse(self.root).append(
            job, 0, lambda n, state: make(n=n, parent=n - 1, datasets=changes)
        )

    @property
    def root(self) -> str:
        return self.files.uri("")

    def work(self, session: Any, **outputs: StagedOutput) -> Work:
        inputs = {name: Dataset(name, (output,)) for name, output in outputs.items()}
        return Work(self.files, Token("j", "reader", 1, "n", "c"), session, inputs)

    def found(self, reader: str, writer: str) -> dict[str, list[Any]]:
        """The values of each column.

        Where all columns cannot be read together, an error stands in for its column.
        """
        if (reader, writer) not in self.read:
            names = list(KEPT[writer])
            staged = {writer: self.staged[writer]}
            try:
                table = READERS[reader](self, staged, ["row", *names]).sort_by("row")
                self.read[reader, writer] = {name: table[name].to_pylist() for name in names}
            except UNREADABLE:
                self.read[reader, writer] = one_by_one = {}
                for name in names:
                    try:
                        table = READERS[reader](self, staged, ["row", name]).sort_by("row")
                        one_by_one[name] = table[name].to_pylist()
                    except UNREADABLE as error:
                        one_by_one[name] = [error]
        return self.read[reader, writer]


UNREADABLE = (Exception, pl.exceptions.PanicException)
Staged = Mapping[str, StagedOutput]


def in_arrow(frame: Any) -> pa.Table:
    """As ``toArrow``, which PySpark 3.5 does not have, collects it."""
    return (
        frame.toArrow()
        if hasattr(frame, "toArrow")
        else pa.Table.from_batches(frame._collect_as_arrow())
    )


def spark_group(place: ValueWarehouse, staged: Staged, columns: list[str]) -> pa.Table:
    return in_arrow(place.work(place.session, **staged).read(*staged).select(columns or "*"))


def light_group(place: ValueWarehouse, staged: Staged, columns: list[str]) -> pa.Table:
    table = place.work(None, **staged).read(*staged)
    return table.select(columns) if columns else table


def published_in_spark(place: ValueWarehouse, staged: Staged, columns: list[str]) -> pa.Table:
    return in_arrow(published(place.session, place.root, *staged).select(columns or "*"))


def published_files_in_arrow(place: ValueWarehouse, staged: Staged, columns: list[str]) -> pa.Table:
    return pq.read_table(published_files(place.root, *staged), columns=columns or None)


def published_files_in_pandas(
    place: ValueWarehouse, staged: Staged, columns: list[str]
) -> pa.Table:
    paths = published_files(place.root, *staged)
    frame = pd.concat(
        pd.read_parquet(path, columns=columns or None, dtype_backend="pyarrow") for path in paths
    )
    return pa.Table.from_pandas(frame, preserve_index=False)


def published_files_in_duckdb(
    place: ValueWarehouse, staged: Staged, columns: list[str]
) -> pa.Table:
    names = ", ".join(f'"{name}"' for name in columns) or "*"
    return duckdb.read_parquet(published_files(place.root, *staged)).select(names).to_arrow_table()


def published_files_in_polars(
    place: ValueWarehouse, staged: Staged, columns: list[str]
) -> pa.Table:
    return pl.read_parquet(published_files(place.root, *staged), columns=columns or None).to_arrow()


READERS: dict[str, Callable[[ValueWarehouse, Staged, list[str]], pa.Table]] = {
    "spark_group": spark_group,
    "light_group": light_group,
    "published": published_in_spark,
    "arrow": published_files_in_arrow,
    "pandas": published_files_in_pandas,
    "duckdb": published_files_in_duckdb,
    "polars": published_files_in_polars,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValueWarehouse]:
    root = tmp_path_factory.mktemp("warehouse")
    Warehouse(str(root)).ensure_id()
    driver = Driver(Settings(spark_master="local[2]", spark_conf={"spark.ui.enabled": "false"}))
    with driver.attempt("values", CONF) as session:
        session.conf.set("spark.sql.session.timeZone", "America/New_York")  # as a step may
        place = ValueWarehouse(Files(str(root)), session)
        assert place.staged
        yield place
    driver.stop()
    end_jvm()


def exact(value: Any) -> Any:
    """``value`` with its type, so that 1, 1.0, True and Decimal(1) are four values, and NaN is
    one.
    """
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [exact(inner) for inner in value]
    if isinstance(value, datetime.datetime):
        return (
            type(value).__name__,
            value.tzinfo is None,
            value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC),
        )
    return type(value).__name__, repr(value) if isinstance(value, float) else value


CELLS = [
    (writer, name, reader)
    for writer, columns in EVERY.items()
    for name in columns
    for reader in READERS
]


@pytest.mark.parametrize(("writer", "column", "reader"), CELLS)
def test_every_reader_finds_the_written_values(
    place: ValueWarehouse, writer: str, column: str, reader: str
) -> None:
    if not is_known(writer, column):
        pytest.skip(f"this PySpark has no column such as {column}")
    assert exact(place.found(reader, writer)[column]) == exact(KEPT[writer][column].read)


@pytest.mark.parametrize("writer", ["arrow", "pandas"])
def test_rules_in_a_spark_group_change_no_type_and_no_value(
    place: ValueWarehouse, writer: str
) -> None:
    """Also where the session has another time zone, as here.

    The rules of such a frame are evaluated by Spark.
    """
    frame = place.frame(writer, {name: column.written for name, column in KEPT[writer].items()})
    checks = Checks(quality=Quality(rules={"first": "row < 1"}, max_rejected_ratio=1.0))
    made = stage_checked(
        place.files, f"_staging/j/g/1-n-c/ruled_{writer}", frame, checks, (), place.session
    )
    good, rejected = made.values()
    assert (good.rows, rejected.rows) == (1, 2)
    plain = json.loads(place.staged[writer].schema)["fields"]
    for column in plain:
        if isinstance(
            column["type"], dict
        ):  # what has no type in a list, map or struct is text to Spark
            column["type"] = json.loads(json.dumps(column["type"]).replace('"void"', '"string"'))
    assert json.loads(good.schema)["fields"] == plain
    assert json.loads(rejected.schema)["fields"][:-1] == plain

    read = place.work(None, good=good, rejected=rejected)
    table = pa.concat_tables(
        [read.read(name).select(["row", *KEPT[writer]]) for name in ("good", "rejected")]
    )
    table = table.sort_by("row")
    for name, column in KEPT[writer].items():
        assert (name, exact(table[name].to_pylist())) == (name, exact(column.read))


def test_an_all_null_part_of_a_dataset_keeps_the_values_of_other_parts(
    place: ValueWarehouse,
) -> None:
    parts = [
        place.write(f"part{n}", pa.table({"v": pa.array([v])}))
        for n, v in enumerate(["text", None])
    ]
    for session in (place.session, None):
        work = Work(
            place.files,
            Token("j", "reader", 1, "n", "c"),
            session,
            {"all": Dataset("all", tuple(parts))},
        )
        table = work.read("all") if session is None else in_arrow(work.read("all"))
        assert sorted(table["v"].to_pylist(), key=str) == [None, "text"]


@pytest.mark.parametrize(
    "typed",
    ["1L", "0.5D", "date'2013-01-01'", "true", "'text'", "array(1)", "named_struct('n', 1)"],
)
def test_an_untyped_column_is_compatible_with_any_type_in_other_parts(
    place: ValueWarehouse, typed: str
) -> None:
    """As of a fork over months, one of which has no data: ``SELECT NULL AS v``."""
    texts = [f"select {typed} as v, 1 as n", "select null as v, 2 as n"]
    parts = [
        place.write(f"typed{n}-{abs(hash(typed))}", place.session.sql(text))
        for n, text in enumerate(texts)
    ]
    for session in (place.session, None):
        work = Work(
            place.files,
            Token("j", "reader", 1, "n", "c"),
            session,
            {"all": Dataset("all", tuple(parts))},
        )
        table = work.read("all") if session is None else in_arrow(work.read("all"))
        rows = sorted(table.to_pylist(), key=lambda row: row["n"])
        assert rows[0]["v"] is not None
        assert rows[1]["v"] is None


NAMES = ["a.b", "a b,;{}()\n\t=`\"'", "Ünï", "select", "void", "a/b:c%20", "_", "1"]


@pytest.mark.parametrize("writer", KEPT)
def test_every_reader_finds_the_given_column_names(place: ValueWarehouse, writer: str) -> None:
    frame: Any = pa.table({name: [n] for n, name in enumerate(NAMES)})
    if writer == "pandas":
        frame = frame.to_pandas()
    if writer == "spark":
        frame = place.session.createDataFrame([list(range(len(NAMES)))], NAMES)
    staged = {f"names_{writer}": place.write(f"names_{writer}", frame)}
    place.publish(f"names_{writer}", staged)
    for name, reader in READERS.items():
        table = reader(place, staged, [])
        assert (name, table.column_names) == (name, NAMES)
        assert table.to_pylist() == [{column: n for n, column in enumerate(NAMES)}]


# -- what is refused -------------------------------------------------------------------------------


def raw(kind: pa.DataType, data: bytes) -> pa.Array:
    """One value whose bytes nobody has checked."""
    offsets = pa.py_buffer((0).to_bytes(4, "little") + len(data).to_bytes(4, "little"))
    buffers = (
        [None, offsets, pa.py_buffer(data)]
        if pa.types.is_string(kind)
        else [None, pa.py_buffer(data)]
    )
    return pa.Array.from_buffers(kind, 1, buffers)


HOUR = datetime.timedelta(hours=1)
REFUSED_IN_ARROW: dict[str, tuple[pa.Array, str]] = {
    **{
        f"duration_{u}": (pa.array([HOUR], pa.duration(u)), f"is duration[{u}]")
        for u in ("s", "ms", "us", "ns")
    },
    "list_of_durations": (pa.array([[HOUR]]), "integer microseconds"),
    "dictionary_of_durations": (encoded(pa.array([HOUR])), "integer microseconds"),
    "map_of_durations": (
        pa.array([[("a", HOUR)]], pa.map_(pa.string(), pa.duration("us"))),
        "integer microseconds",
    ),
    "interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "is month_day_nano_interval"),
    "time32": (pa.array([datetime.time(1)], pa.time32("s")), "is time32[s]"),
    "time64": (pa.array([datetime.time(1)], pa.time64("ns")), "microseconds since midnight"),
    "digits": (pa.array([10**38], pa.decimal256(39, 0)), "is decimal256(39, 0)"),
    "scale": (pa.array([D("1E+2")], pa.decimal128(5, -2)), "is decimal128(5, -2)"),
    "point": (raw(pa.decimal128(2, 5), (1).to_bytes(16, "little")), "is decimal128(2, 5)"),
    "more_digits_than_said": (
        raw(pa.decimal128(2, 0), (1000).to_bytes(16, "little")),
        "does not fit in precision",
    ),
    "uint64": (pa.array([2**63], pa.uint64()), "(uint64) cannot be stored as int64"),
    "nanoseconds": (pa.array([1], pa.timestamp("ns")), "Round the values"),
    "instant_of_nanoseconds": (pa.array([1], pa.timestamp("ns", "UTC")), "would lose data"),
    "list_of_nanoseconds": (pa.array([[1]], pa.list_(pa.timestamp("ns"))), "would lose data"),
    "far_future": (pa.array([2**60], pa.timestamp("s")), "out of bounds"),
    "date_with_hours": (raw(pa.date64(), (3_600_000).to_bytes(8, "little")), "Store a timestamp"),
    "no_utf8": (raw(pa.string(), b"\xff"), "Invalid UTF8"),
    "key_twice": (
        pa.array([[("a", 1)], None, [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())),
        "a key twice",
    ),
    "key_twice_in_a_struct": (
        pa.array(
            [{"m": [[(1, [(b"k", 1), (b"k", 2)])]]}],
            pa.struct({"m": pa.list_(pa.map_(pa.int8(), pa.map_(pa.binary(), pa.int8())))}),
        ),
        "a key twice",
    ),
    "empty_struct": (pa.array([{}], pa.struct([])), "add a field"),
    "uuid": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16))),
        "Store text",
    ),
    "union": (
        pa.UnionArray.from_dense(
            pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
        ),
        "Store text",
    ),
    "run_ends": (
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
        "Store text",
    ),
}
REFUSED_IN_PANDAS: dict[str, tuple[Any, str]] = {
    **{
        f"timedelta_{u}": (pd.Series([HOUR], dtype=f"timedelta64[{u}]"), "integer microseconds")
        for u in ("s", "ns")
    },
    "timedelta_objects": (pd.Series([HOUR], dtype="object"), "integer microseconds"),
    "times": (pd.Series([datetime.time(1)]), "microseconds since midnight"),
    "beyond_64_bits": (pd.Series([2**70, 1]), "(object) cannot be stored: Python int too large"),
    "beyond_63_bits": (pd.Series([2**63, 1]), "64 bits, one of them for the sign"),
    "digits": (pd.Series([D(10**38)]), "Decimals have up to 38 digits"),
    "mixed": (pd.Series(["a", 1]), "(object) cannot be stored"),
    "complex": (pd.Series([1j]), "(complex128) cannot be stored"),
    "sparse": (pd.Series(pd.arrays.SparseArray([1])), "cannot be stored"),
    "objects": (pd.Series([object()]), "(object) cannot be stored"),
    "half_a_character": (pd.Series(["\ud800"]), "surrogates not allowed"),
    "period": (pd.Series(pd.period_range("2013", periods=1, freq="D")), "Store text"),
    "ranges": (pd.Series(pd.interval_range(0, 1)), "Store text"),
    "uuid": (pd.Series([uuid.UUID(int=1)]), "Store text"),
    "nanoseconds": (pd.Series([1], dtype="datetime64[ns]"), "would lose data"),
    "empty_structs": (pd.Series([{}]), "add a field"),
}
REFUSED_IN_SPARK: dict[str, tuple[str, str]] = {
    "interval": ("interval '1 02:03:04' day to second", "is interval day to second"),
    "months": ("interval '1-2' year to month", "is interval year to month"),
    "array_of_intervals": ("array(interval '1' hour)", "integer microseconds"),
    "struct_of_intervals": (
        "named_struct('took', interval '1' hour)",
        "struct_of_intervals.took is interval hour",
    ),
    "map_of_intervals": ("map(1, interval '1' hour)", "integer microseconds"),
    "calendar": ("make_interval(1, 2)", "is interval"),
    "time": ("time'01:02:03'", "microseconds since midnight"),
    "variant": ("parse_json('1')", "to_json"),
    "empty_struct": ("struct()", "add a field"),
}
REFUSED = {"arrow": REFUSED_IN_ARROW, "pandas": REFUSED_IN_PANDAS, "spark": REFUSED_IN_SPARK}


def refusal(place: ValueWarehouse, frame: Any) -> str:
    """The sentence with which ``frame`` is refused, for good and before anything of it is
    written.
    """
    with pytest.raises(OutputInvalid) as caught:
        place.write("refused", frame)
    assert not failure_of(caught.value).recoverable
    assert place.files.names("_staging/j/g/1-n-c/refused") == []
    return str(caught.value)


@pytest.mark.parametrize("writer", REFUSED)
@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "the frame has no columns"),
        (["n", "n"], "the frame has two columns n"),
        (["n", "m", "N"], "the frame has columns n and N, which Spark takes for one"),
        (["É", "é"], "the frame has columns É and é, which Spark takes for one"),
        ([""], "a column of the frame has no name"),
    ],
)
def test_ambiguous_names_are_refused(
    place: ValueWarehouse, writer: str, names: list[str], says: str
) -> None:
    if writer == "spark":
        frame = place.session.range(1).select(*(lit(n).alias(name) for n, name in enumerate(names)))
    elif writer == "arrow":
        frame = pa.Table.from_arrays([pa.array([1])] * len(names), names=names)
    else:
        frame = pd.DataFrame([[1] * len(names)], columns=names)
    assert refusal(place, frame).startswith(says)


@pytest.mark.parametrize("fields", [["n", "n"], ["n", "N"]])
@pytest.mark.parametrize("writer", ["arrow", "spark"])
def test_indistinguishable_names_in_a_struct_are_refused(
    place: ValueWarehouse, writer: str, fields: list[str]
) -> None:
    if writer == "spark":
        frame = place.session.sql(
            f"select array(named_struct('{fields[0]}', 1, '{fields[1]}', 2)) as s"
        )
    else:
        struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=fields)
        frame = pa.table({"s": pa.ListArray.from_arrays(pa.array([0, 1]), struct)})
    assert refusal(place, frame).startswith("the struct s has ")


@pytest.mark.parametrize(
    ("writer", "column"),
    [(writer, name) for writer, columns in REFUSED.items() for name in columns],
)
def test_a_column_that_readers_would_interpret_differently_is_refused_by_name(
    place: ValueWarehouse, writer: str, column: str
) -> None:
    value, says = REFUSED[writer][column]
    if not is_known(writer, column):
        pytest.skip(f"this PySpark has no column such as {column}")
    if writer == "spark":
        frame = place.session.sql(f"select 1 as row, {value} as {column}")
    else:
        frame = {"arrow": pa.table, "pandas": pd.DataFrame}[writer](
            {"row": range(len(value)), column: value}
        )
    said = refusal(place, frame)
    print(said)
    assert said.startswith(f"the column {column}")
    assert says in said
    assert said.count(". ") >= 1  # what to do instead
