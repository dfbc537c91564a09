"""The files of a stream: each case is a real file, with the same rows or error by Spark, with
state, and without Spark.

Spark reads small inputs through its driver, and large ones in tasks.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal as D
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.support.spark.jvm import end_jvm
from tests.support.streams.kafka import mock_broker
from unstuck import Settings
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.errors import BadFile, BadRecord, FileUnsettled
from unstuck.tasks.formats import csv_files
from unstuck.tasks.formats.arrived import ArrivedFile, content_of
from unstuck.tasks.formats.csv_files import read_csv
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.read import files_read, kafka_read
from unstuck.tasks.streams.read.files_read import TASK_SIZES, ReadFiles, TaskSizes, read_files
from unstuck.tasks.streams.read.group_stream import Reader
from unstuck.tasks.streams.read.spark_tasks import in_tasks
from unstuck.tasks.streams.read.structured import is_streaming
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.object_store import ObjectStore

pytestmark = pytest.mark.variant

UTC = datetime.UTC
Task = partial[dict[str, Any]]  # of Spark
HEADER = {"header": "true"}
ID_NAME = "id BIGINT, name STRING"
ANN, BEN = {"id": 1, "name": "ann"}, {"id": 2, "name": "ben"}
NFC, NFD = (unicodedata.normalize(form, "über") for form in ("NFC", "NFD"))


def parquet(**columns: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out)
    return out.getvalue().to_pybytes()


def int96(**columns: Any) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out, use_deprecated_int96_timestamps=True)
    return out.getvalue().to_pybytes()


def orc_file(**columns: Any) -> bytes:
    out = pa.BufferOutputStream()
    orc.write_table(pa.table(columns), out)
    return out.getvalue().to_pybytes()


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@dataclass
class FileCase:
    """Files of a stream, and the rows that they hold, or what the error says.

    Attributes:
        content: of the file ``a``; or of several files by their names.
    """

    name: str
    format: str
    content: bytes | dict[str, bytes]
    then: list[dict[str, Any]] | list[str]
    schema: str = ID_NAME
    options: dict[str, str] = field(default_factory=dict)
    allow: bool = False

    @property
    def files(self) -> dict[str, bytes]:
        return (
            self.content if isinstance(self.content, dict) else {f"a.{self.format}": self.content}
        )


def csv(
    name: str, content: bytes | dict[str, bytes], then: Any, schema: str = ID_NAME, **more: Any
) -> FileCase:
    return FileCase(name, "csv", content, then, schema, more.pop("options", HEADER), **more)


def of_json(
    name: str, content: bytes | dict[str, bytes], then: Any, schema: str = ID_NAME, **more: Any
) -> FileCase:
    return FileCase(name, "json", content, then, schema, **more)


ODD_NAMES = [
    "a[1].csv",
    "a{1,2}.csv",
    "a*.csv",
    "a?.csv",
    "a\\b.csv",
    "a:b.csv",
    "a%20b.csv",
    "a b#c.csv",
    "a,b.csv",
]
PLAIN = {"a1.csv": b"id,name\n1,ann\n", "ab.csv": b"id,name\n2,ben\n"}
CASES = [
    # Names of files.
    csv(
        "names that are patterns for Spark",
        {**PLAIN, **{name: b"id,name\n%d,x\n" % at for at, name in enumerate(ODD_NAMES, 10)}},
        [ANN, BEN, *({"id": at, "name": "x"} for at, _ in enumerate(ODD_NAMES, 10))],
    ),
    csv(
        "Unicode in names, composed or not",
        {f"{NFC}.csv": b"id,name\n1,ann\n", f"{NFD} 2.csv": b"id,name\n2,ben\n"},
        [ANN, BEN],
    ),
    # Columns of CSV.
    csv("columns in another order", b"name,id\nann,1\n", [ANN]),
    csv("names in other letters, with blanks", b"ID, Name\n1,ann\n", [ANN]),
    csv("one more in the middle", b"id,age,name\n1,7,ann\n", ["id, age, name", "has age as well"]),
    csv("one more in the middle, allowed", b"id,age,name\n1,7,ann\n", [ANN], allow=True),
    csv(
        "one fewer", b"id\n1\n", ["has the columns id, and the schema has id, name: it lacks name"]
    ),
    csv("one fewer, allowed", b"id\n1\n", [{"id": 1, "name": None}], allow=True),
    csv("a name twice", b"id,name,ID\n1,ann,2\n", ["line 1", "the column 'id' twice"]),
    csv(
        "a record with too many fields",
        b"id,name\n1,ann\n2,ben,x\n",
        ["line 3", "3 fields", "2 columns"],
    ),
    csv("a record with too few fields", b'id,name\n1,"a\nnn"\n\n2\n', ["line 5", "1 field,"]),
    csv("no header", b"1,ann\n2,ben", [ANN, BEN], options={}),
    csv("no header, too few fields", b"1,ann\n2\n", ["line 2", "1 field,"], options={}),
    csv(
        "a header that nobody said",
        b"\r\nid,name\n1,ann\n",
        ["line 2", 'say options: {header: "true"}'],
        options={},
    ),
    csv(
        "a header of other columns that nobody said",
        b"NAME;more\nann;x\n",
        ["line 1", "header"],
        options={"sep": ";"},
    ),
    csv(
        "a header of text that nobody said",
        b'b,"a"\n1,2\n',
        ["option header"],
        "a STRING, b STRING",
        options={},
    ),
    csv(
        "names as values",
        b"a,b\n",
        [{"a": "a", "b": "b"}],
        "a STRING, b STRING",
        options={"header": "false"},
    ),
    csv(
        "one column, whose value is its name",
        b"name\n",
        [{"name": "name"}],
        "name STRING",
        options={},
    ),
    csv("a header alone", b"id,name\n", []),
    csv("an other header alone", b"id,age\n", ["lacks name", "has age"]),
    csv("no bytes", b"", []),
    csv("an empty line alone", b"\n", []),
    csv(
        "empty lines before the header", b"\r\n\nid,name\n1,ann\nx,ben\n", ["line 5", "the text x"]
    ),
    csv(
        "the path of the file",
        {"b[1].csv": b"id\n1\n"},
        [{"id": 1, "_file": "HOME/b[1].csv"}],
        "id INT, _file STRING",
    ),
    # Form of CSV.
    csv(
        "a mark, CRLF, line ends in quotes",
        b'\xef\xbb\xbfid,name\r\n1,"a\r\nnn"\r\n',
        [{"id": 1, "name": "a\r\nnn"}],
    ),
    csv(
        "quotes",
        b'id,name\n1,"a ""b"", c"\n2,5" pipe\n',
        [{"id": 1, "name": 'a "b", c'}, {"id": 2, "name": '5" pipe'}],
    ),
    csv(
        "an empty text is no null",
        b'id,name\n1,""\n2,\n',
        [{"id": 1, "name": ""}, {"id": 2, "name": None}],
    ),
    csv(
        "text after a quote",
        b'id,name\n1,ann\n2,"b\\"en",\n',
        ["line 3", "a closing one".replace("a ", "the ")],
    ),
    csv(
        "backslashes",
        b'id,name\n2,"b\\"en"\n',
        [{"id": 2, "name": 'b"en'}],
        options={**HEADER, "escape": "\\"},
    ),
    csv("a quote that is not closed", b'id,name\n1,ann\n2,"ben\n3,c\n', ["line 3"]),
    csv("tabs", b"id\tname\n1\tann\n", [ANN], options={**HEADER, "sep": "\\t"}),
    csv(
        "another null",
        b"id,name\n1,NA\n2,\n",
        [{"id": 1, "name": None}, {"id": 2, "name": ""}],
        options={**HEADER, "nullValue": "NA"},
    ),
    # Encodings.
    csv("Latin-1", b"id,name\n1,ann\n2,J\xfcrgen\n", ["line 3", "0xFC", "encoding"]),
    csv(
        "Latin-1, said",
        "id,name\n1,Jürgen\n".encode("latin-1"),
        [{"id": 1, "name": "Jürgen"}],
        options={**HEADER, "encoding": "ISO-8859-1"},
    ),
    csv("UTF-16", "id,name\n1,ann\n".encode("utf-16"), ["UTF-16"]),
    csv("UTF-16 without a mark", "id,name\n1,ann\n".encode("utf-16-le"), ["line 1", "character 0"]),
    csv(
        "UTF-16, said",
        "id,name\n1,ann\n".encode("utf-16"),
        [ANN],
        options={**HEADER, "charset": "UTF-16"},
    ),
    of_json(
        "Latin-1 in JSON", '{"id": 1, "name": "Jürgen"}\n'.encode("latin-1"), ["line 1", "0xFC"]
    ),
    # Values of CSV.
    csv(
        "a value that is no number",
        b"id,name\n1,ann\n\nx,ben\n",
        ["line 4", "column id", "bigint", "the text x"],
    ),
    csv(
        "a number that is too large",
        b"id,name\n1,ann\n300,ben\n",
        ["line 3", "tinyint", "300"],
        "id TINYINT, name STRING",
    ),
    csv("a fraction", b"id,name\n1.5,ann\n", ["line 2", "1.5"]),
    csv("hexadecimal", b"id,name\n0x1F,ann\n", ["line 2", "0x1F"]),
    csv(
        "types",
        (
            b"b,i,d,m,on,at,local\n TRUE,-7 "
            b",1e3,1.20,2024-02-29,2024-01-31T10:00:00+02:00,2024-01-31 "
            b"10:00:00.5\n,,,,,,\n"
        ),
        [
            {
                "b": True,
                "i": -7,
                "d": 1000.0,
                "m": D("1.20"),
                "on": datetime.date(2024, 2, 29),
                "at": datetime.datetime(2024, 1, 31, 8, tzinfo=UTC),
                "local": datetime.datetime(2024, 1, 31, 10, 0, 0, 500000),
            },
            dict.fromkeys(("b", "i", "d", "m", "on", "at", "local")),
        ],
        (
            "b BOOLEAN, i SMALLINT, d DOUBLE, m DECIMAL(5,2), on DATE, at TIMESTAMP, local "
            "TIMESTAMP_NTZ"
        ),
    ),
    csv(
        "an instant without a zone",
        b"at\n2024-07-01 12:00:00\n",
        [{"at": datetime.datetime(2024, 7, 1, 10, tzinfo=UTC)}],
        "at TIMESTAMP",
        options={**HEADER, "timeZone": "Europe/Berlin"},
    ),
    csv("a number without a limit", b"d\n1e400\n", ["line 2", "1e400"], "d DOUBLE"),
    csv("a decimal with more digits", b"m\n1.234\n", ["line 2", "1.234"], "m DECIMAL(5,2)"),
    csv("a day that is none", b"on\n2023-02-29\n", ["line 2", "2023-02-29"], "on DATE"),
    # JSON.
    of_json(
        "JSON",
        b'\xef\xbb\xbf{"name": "ann", "id": 1}\r\n\r\n{"id": 2, "name": null}',
        [ANN, {"id": 2, "name": None}],
    ),
    of_json("a key more", lines(ANN, {**BEN, "age": 1}), ["line 2", "it has age"]),
    of_json("a key fewer", lines(ANN, {"id": 2}), ["line 2", "it lacks name"]),
    of_json("keys, allowed", lines({"id": 1, "age": 1}), [{"id": 1, "name": None}], allow=True),
    of_json("a key twice", b'{"id": 1, "id": 2, "name": "a"}\n', ["line 1", "a name twice"]),
    of_json(
        "a number as text",
        lines(ANN, {"id": "2", "name": "ben"}),
        ["line 2", "column id", "'2'", "this is text"],
    ),
    of_json(
        "text as a number",
        lines(ANN, {"id": 2, "name": 5}),
        ["line 2", "column name", "text is expected, and this is a number"],
    ),
    of_json(
        "an object as text",
        lines({"id": 2, "name": {"a": 1}}),
        ["line 1", "column name", "this is an object"],
    ),
    of_json(
        "a fraction in JSON",
        lines({"id": 1.5, "name": ""}),
        ["line 1", "1.5", "a whole number is expected"],
    ),
    of_json(
        "a number too large in JSON", lines({"id": 2**63, "name": ""}), ["line 1", "column id"]
    ),
    of_json(
        "a number too large for its column",
        lines({"id": 300}),
        ["line 1", "column id"],
        "id TINYINT",
    ),
    of_json("a broken line", lines(ANN) + b'{"id": 2, "na\n', ["line 2", "no JSON"]),
    of_json(
        "a line that is no object",
        b"[1]\n",
        ["line 1", "an object is expected, and this is a list"],
    ),
    of_json(
        "nested values",
        lines({"a": [{"at": "2024-01-31", "n": 1}], "m": {"x": 0.5}, "d": 1.25}),
        [{"a": [{"n": 1, "at": datetime.date(2024, 1, 31)}], "m": [("x", 0.5)], "d": D("1.25")}],
        "a ARRAY<STRUCT<n: INT, at: DATE>>, m MAP<STRING, DOUBLE>, d DECIMAL(5,2)",
    ),
    of_json(
        "a key more within",
        lines({"a": {"n": 1, "o": 2}}),
        ["line 1", "column a", "it has o"],
        "a STRUCT<n: INT>",
    ),
    of_json(
        "a date in JSON that is none",
        lines({"on": "soon"}),
        ["line 1", "column on", "soon"],
        "on DATE",
    ),
    of_json("a null", b"null\n", ["line 1", "an object is expected, and this is null"]),
    of_json(
        "a document",
        json.dumps([ANN, BEN], indent=1).encode(),
        [ANN, BEN],
        options={"multiLine": "true"},
    ),
    of_json(
        "a document cut short",
        b'[{"id": 1,\n "name"',
        ["line 2", "no JSON"],
        options={"multiLine": "true"},
    ),
    # Parquet and ORC.
    FileCase(
        "Parquet by name", "parquet", parquet(name=["ann"], id=pa.array([1], pa.int32())), [ANN]
    ),
    FileCase(
        "Parquet, renamed",
        "parquet",
        parquet(ident=[1], name=["ann"]),
        ["ident, name", "lacks id", "has ident"],
    ),
    FileCase(
        "Parquet, renamed, allowed",
        "parquet",
        parquet(ident=[1], name=["ann"]),
        [{"id": None, "name": "ann"}],
        allow=True,
    ),
    FileCase(
        "Parquet, another type",
        "parquet",
        parquet(id=["1", "x"], name=["a", "b"]),
        ["row 1", "column id", "string"],
    ),
    FileCase(
        "Parquet, a value too large",
        "parquet",
        parquet(id=[1, 300]),
        ["row 2", "column id", "300"],
        "id TINYINT",
    ),
    FileCase(
        "Parquet, two names that are one", "parquet", parquet(id=[1], ID=[2]), ["ID"], "id BIGINT"
    ),
    FileCase(
        "Parquet, no rows",
        "parquet",
        parquet(id=pa.array([], pa.int64()), name=pa.array([], pa.string())),
        [],
    ),
    FileCase(
        "Parquet, no rows, renamed",
        "parquet",
        parquet(ident=pa.array([], pa.int64())),
        ["lacks id"],
    ),
    FileCase(
        "Parquet without its footer",
        "parquet",
        parquet(id=[1], name=["ann"])[:-20],
        ["cannot be read as Parquet"],
    ),
    FileCase("Parquet without bytes", "parquet", b"", ["cannot be read as Parquet"]),
    FileCase(
        "instants as Spark writes them by default",
        "parquet",
        int96(at=[datetime.datetime(1500, 1, 31, 8)]),
        [{"at": datetime.datetime(1500, 1, 31, 8, tzinfo=UTC)}],
        "at TIMESTAMP",
    ),
    FileCase(
        "an instant is no local time",
        "parquet",
        parquet(at=pa.array([0], pa.timestamp("us"))),
        ["row 1", "column at", "zone"],
        "at TIMESTAMP",
    ),
    FileCase("ORC by name", "orc", orc_file(name=["ann"], id=pa.array([1], pa.int32())), [ANN]),
    FileCase("ORC, renamed", "orc", orc_file(ident=[1], name=["ann"]), ["lacks id"]),
    FileCase("ORC, cut short", "orc", orc_file(id=[1], name=["ann"])[:-9], ["ORC"]),
    # Text, and what is packed.
    FileCase(
        "text",
        "text",
        b"\xef\xbb\xbfa\r\n\nb",
        [{"line": "a"}, {"line": ""}, {"line": "b"}],
        "line STRING",
    ),
    FileCase("text in Latin-1", "text", b"a\n\xfc\n", ["line 2", "0xFC"], "line STRING"),
    csv(
        "packed",
        {"a.csv.gz": gzip.compress(PLAIN["a1.csv"]), "b.csv.bz2": bz2.compress(PLAIN["ab.csv"])},
        [ANN, BEN],
    ),
    csv("a cut .gz", {"a.csv.gz": gzip.compress(PLAIN["a1.csv"] * 99)[:-9]}, ["cut short"]),
    csv("a .gz without bytes", {"a.csv.gz": b""}, ["cut short"]),
    csv("a .gz that is none", {"a.csv.gz": b"id,name\n1,ann\n"}, ["damaged"]),
    csv("a cut .bz2", {"a.csv.bz2": bz2.compress(PLAIN["a1.csv"] * 99)[:-9]}, ["cut short"]),
    *(
        csv(f"{kind}", {f"a.csv.{kind}": pa.compress(PLAIN["a1.csv"], name, asbytes=True)}, [ANN])
        for kind, name in (("zst", "zstd"),)
    ),
    csv(
        "a cut .zst",
        {"a.csv.zst": pa.compress(os.urandom(99).hex().encode(), "zstd", asbytes=True)[:-9]},
        ["cut short"],
    ),
    csv("a .zip", {"a.csv.zip": b"PK"}, [".zip cannot be unpacked"]),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver(Settings(spark_master="local[2]", spark_conf={"spark.ui.enabled": "false"}))
    yield driver
    driver.stop()
    end_jvm()


@dataclass
class StreamPlace:
    """A landing folder, a warehouse, and Spark or none; ``state``: Spark gets a streaming frame."""

    home: Path
    session: Any
    state: bool = False
    sizes: TaskSizes = TASK_SIZES

    def read(self, case: FileCase, **more: Any) -> ReadFiles:
        return self.of(case, self.arrived(case), **more)

    def arrived(self, case: FileCase) -> list[ArrivedFile]:
        landing = self.home / "in"
        landing.mkdir(exist_ok=True)
        for name, data in case.files.items():
            (landing / name).write_bytes(data)
        found = ((landing / name, (landing / name).stat()) for name in case.files)
        return [
            ArrivedFile(str(path), content_of(stat.st_size, stat.st_mtime_ns))
            for path, stat in found
        ]

    def of(self, case: FileCase, arrived: list[ArrivedFile], **more: Any) -> ReadFiles:
        words = {"on_other_columns": "allow" if case.allow else "fail", "state": self.state, **more}
        stream = StreamInput.model_validate(
            {
                "stream": str(self.home),
                "format": case.format,
                "schema": case.schema,
                "options": case.options,
                **words,
            }
        )
        files = Files(str(self.home / "warehouse"))
        return read_files(self.session, arrived, stream, files, "_staging/a/_arrived", self.sizes)


class ShortReader:
    """A stream that answers each read with at most ``most`` bytes."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most = stream, most

    def read(self, size: int) -> bytes:
        return bytes(self._stream.read(min(size, self._most)))


def rows(read: ReadFiles) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if not is_streaming(read.frame):
        return rows_of(read.frame)
    query = read.frame.writeStream.foreachBatch(lambda batch, _: found.extend(rows_of(batch)))
    query.trigger(availableNow=True).start().awaitTermination()
    return found


def rows_of(frame: Any) -> list[dict[str, Any]]:
    if not isinstance(frame, pa.Table):
        if not hasattr(frame, "toArrow"):  # Spark 3.5
            return [row for batch in frame._collect_as_arrow() for row in batch.to_pylist()]
        frame = frame.toArrow()
    return frame.to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(
    params=["spark", pytest.param("state", marks=pytest.mark.long), "without Spark"],
    scope="module",
)
def reader(request: pytest.FixtureRequest) -> Iterator[tuple[Any, bool]]:
    """A session, or None; and whether Spark gets a streaming frame."""
    if request.param == "without Spark":
        yield None, False
        return
    with request.getfixturevalue("driver").attempt("a/b/1/n/c", {}) as session:
        yield session, request.param == "state"


@pytest.fixture
def place(reader: tuple[Any, bool], tmp_path: Path) -> StreamPlace:
    return StreamPlace(tmp_path, *reader)


@pytest.fixture
def spark_place(driver: Driver, tmp_path: Path) -> Iterator[StreamPlace]:
    with driver.attempt("a/b/1/n/c", {}) as session:
        yield StreamPlace(tmp_path, session)


@pytest.fixture(params=["driver", "tasks", "without Spark"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> StreamPlace:
    """Also one in which tasks of Spark read the files."""
    if request.param == "without Spark":
        return StreamPlace(tmp_path, None)
    place: StreamPlace = request.getfixturevalue("spark_place")
    return replace(place, sizes=TaskSizes(driver=0, task=8)) if request.param == "tasks" else place


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_is_read_correctly_or_refused_with_its_place(
    place: StreamPlace, case: FileCase
) -> None:
    if case.then and isinstance(case.then[0], str):
        with pytest.raises(BadFile) as raised:
            place.read(case)
        said = str(raised.value)
        assert [
            word
            for word in (*case.then, next(iter(case.files)))
            if word.lower() not in said.lower()
        ] == [], said
        return
    home = str(place.home / "in")
    expected = [
        {
            key: value.replace("HOME", home) if key == "_file" else value
            for key, value in row.items()
        }
        for row in case.then
    ]
    read = place.read(case)
    key: Callable[[dict[str, Any]], str] = lambda row: str(row.get("id"))  # noqa: E731
    assert sorted(rows(read), key=key) == sorted(expected, key=key)
    assert sum(read.rows.values()) == len(expected)
    assert read.rows.keys() == {f"{home}/{name}" for name in case.files}


def test_missing_and_changed_files_have_their_own_codes(any_place: StreamPlace) -> None:
    for change in (Path.unlink, lambda path: path.write_bytes(b"id,name\n1,an")):
        case = csv("", PLAIN, [])
        arrived = any_place.arrived(case)
        change(Path(arrived[1].path))
        with pytest.raises(
            FileUnsettled, match=r"ab\.csv.*(not there any more|has changed since it was listed)"
        ):
            any_place.of(case, arrived)


def test_a_file_that_changes_while_it_is_read_is_not_accepted(
    place: StreamPlace, monkeypatch: Any
) -> None:
    case = csv("", {"a.csv": b"id,name\n" + b"1,ann\n" * 9}, [])
    arrived = place.arrived(case)
    read_csv = csv_files.read_csv

    def read_and_write(*arguments: Any) -> Any:
        yield from read_csv(*arguments)
        with open(arrived[0].path, "ab") as more:
            more.write(b"2,ben\n")

    monkeypatch.setattr(csv_files, "read_csv", read_and_write)
    with pytest.raises(
        FileUnsettled, match="has changed since it was listed: it had 62 bytes, and has 68"
    ):
        place.of(case, arrived)


def test_a_bad_file_is_quarantined_with_its_error_and_line_without_reading_rows(
    any_place: StreamPlace,
) -> None:
    many = b"id,name\n" + b"3,c\n" * 400_000  # more than are read at once
    case = csv(
        "", {**PLAIN, "bad.csv": many + b"x,dan\n", "cut.csv.gz": gzip.compress(many)[:-9]}, []
    )
    arrived = [
        *any_place.arrived(case),
        ArrivedFile(str(any_place.home / "in" / "gone.csv"), "3 1"),
    ]
    found = any_place.of(case, arrived, on_bad_file="skip")
    assert sorted(rows(found), key=lambda row: str(row["id"])) == [ANN, BEN]
    bad, cut, gone = found.put_aside
    assert (Path(bad.path).name, bad.line) == ("bad.csv", 400_002)
    assert "column id is to be bigint, and holds the text x" in bad.error
    assert "cut short" in cut.error
    assert "not there any more" in gone.error
    assert {Path(path).name: count for path, count in found.rows.items()} == {
        "a1.csv": 1,
        "ab.csv": 1,
    }


@pytest.mark.parametrize("size", [1009, 16 * 1024 * 1024])
def test_rows_of_several_blocks_are_all_read(
    place: StreamPlace, monkeypatch: Any, size: int
) -> None:
    """Blocks end within fields, within quotes, within a letter, and within a line end."""
    monkeypatch.setattr(
        csv_files, "read_csv", lambda stream, *rest: read_csv(ShortReader(stream, size), *rest)
    )
    rows_ = [f'{n},"a\r\n{"ü" * (n % 7)}""{n}"\r\n' for n in range(3_000)]
    whole = ("id,name\r\n" + "".join(rows_)).encode()
    found = place.read(csv("", {"a.csv": whole, "b.csv.gz": gzip.compress(whole)}, []))
    expected = [f'a\r\n{"ü" * (n % 7)}"{n}' for n in range(3_000)]
    assert sorted(row["name"] for row in rows(found)) == sorted(expected * 2)


def test_objects_with_any_name_are_read(bucket: str, tmp_path: Path) -> None:
    """Spark needs no connector for them."""
    landing = Files(bucket)
    case = csv("", {}, [])
    for number, name in enumerate(names := ["a[1].csv", "ü a*.csv", "b{1}.csv.gz", "c.csv"]):
        data = b"id,name\n%d,ann\n" % number
        landing.write_durable(f"in/{name}", gzip.compress(data) if name.endswith("gz") else data)
    listed = list(ObjectStore(bucket).listed("in"))
    arrived = [
        ArrivedFile(f"{bucket}/{path}", content_of(size, etag)) for path, size, etag, _ in listed
    ]
    assert sorted(file.path for file in arrived) == sorted(f"{bucket}/in/{name}" for name in names)
    found = StreamPlace(tmp_path, None).of(case, arrived)
    assert sorted(row["id"] for row in rows(found)) == [0, 1, 2, 3]
    landing.write_durable("in/a[1].csv", b"id,name\n9,ann\n")
    with pytest.raises(
        FileUnsettled, match=r"a\[1\]\.csv: the file has changed since it was listed"
    ):
        StreamPlace(tmp_path, None).of(case, arrived)
    landing.remove_file("in/a[1].csv")
    with pytest.raises(FileUnsettled, match=r"a\[1\]\.csv: the file is not there any more"):
        StreamPlace(tmp_path, None).of(case, arrived)


def test_spark_tasks_read_the_same_rows_as_the_driver(spark_place: StreamPlace) -> None:
    place = spark_place
    case = csv(
        "",
        {f"{n} [{n}].csv": b"id,name\n%d,%b\n" % (n, b"x" * n) for n in range(40)},
        [],
        f"{ID_NAME}, _file STRING",
    )
    expected = rows(place.read(case))
    found = replace(place, sizes=TaskSizes(driver=1, task=200)).read(case)
    assert sorted(map(str, rows(found))) == sorted(map(str, expected))
    assert len(found.rows) == len(expected) == 40
    warehouse = place.home / "warehouse" / "_staging"
    assert len({path.parent for path in warehouse.rglob("*.parquet")}) > 3


def test_the_driver_reads_if_executors_lack_the_package(
    spark_place: StreamPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = ModuleType("of_the_driver_alone")
    exec("def call(part):\n    return part()", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def needs_the_module(session: Any, parts: list[Task], *rest: Any) -> Any:
        return in_tasks(session, [partial(module.call, part) for part in parts], *rest)

    monkeypatch.setattr(files_read, "in_tasks", needs_the_module)
    assert len(rows(replace(spark_place, sizes=TaskSizes(driver=0)).read(csv("", PLAIN, [])))) == 2
    assert "cannot read the 2 files of a stream, so its driver reads all" in caplog.text
    assert "No module named 'of_the_driver_alone'" in caplog.text


def test_the_driver_reads_files_that_executors_cannot_find(
    spark_place: StreamPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def on_a_host_without_the_folder(session: Any, parts: list[Task], *rest: Any) -> Any:
        return in_tasks(session, [elsewhere(part) for part in parts], *rest)

    def elsewhere(part: Task) -> Task:
        share, *others = part.args
        return partial(
            part.func, [replace(one, path=f"/elsewhere{one.path}") for one in share], *others
        )

    monkeypatch.setattr(files_read, "in_tasks", on_a_host_without_the_folder)
    place = replace(spark_place, sizes=TaskSizes(driver=0))
    assert len(rows(place.read(csv("", PLAIN, []), on_bad_file="skip"))) == 2
    assert (
        "could not read a file as it was listed, so the driver reads all: the file is not there"
        in caplog.text
    )


def test_files_written_by_spark_are_read_unchanged(place: StreamPlace, driver: Driver) -> None:
    """Each type, also in lists and structs, written by Spark's own writers with their defaults."""
    schema = (
        "i INT, t STRING, d DECIMAL(9,3), at TIMESTAMP, l TIMESTAMP_NTZ, on DATE, s "
        "ARRAY<STRUCT<n: BIGINT>>"
    )
    sql = (
        "SELECT 1 i, 'ä' t, CAST(1.5 AS DECIMAL(9,3)) d, TIMESTAMP'2024-03-31 12:00:00.123Z' at, "
        "TIMESTAMP_NTZ'2024-03-31 02:30:00' l, DATE'1500-01-01' on, array(named_struct('n', 5L)) s"
    )
    expected = [
        {
            "i": 1,
            "t": "ä",
            "d": D("1.500"),
            "at": datetime.datetime(2024, 3, 31, 12, 0, 0, 123000, UTC),
            "l": datetime.datetime(2024, 3, 31, 2, 30),
            "on": datetime.date(1500, 1, 1),
            "s": [{"n": 5}],
        }
    ]
    with driver.attempt("job/other/1/n/c", {}) as session:
        if (
            session.version < "4"
        ):  # it refuses to write old days unless it is told of which calendar they are
            session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")

        def written(format: str, sql: str) -> bytes:
            folder = place.home / format
            session.sql(sql).coalesce(1).write.mode("overwrite").format(format).save(str(folder))
            return next(folder.glob("part-*")).read_bytes()

        for format in ("parquet", "json"):
            assert (
                rows(place.read(FileCase("", format, written(format, sql), [], schema))) == expected
            ), format
        # ORC has no word for an instant, nor for the calendar of a day.
        at, day = (
            FileCase("", "orc", written("orc", f"SELECT at FROM ({sql})"), [], "at TIMESTAMP"),
            f"SELECT on FROM ({sql})",
        )
        assert rows(place.read(at)) == [{"at": expected[0]["at"]}]
        with pytest.raises(
            BadFile, match=r"column on has a day before 1582-11-01 .* in which calendar"
        ):
            place.read(FileCase("", "orc", written("orc", day), [], "on DATE"))


def test_spark_tasks_read_many_messages_of_a_topic_with_the_same_rows_or_error(
    spark_place: StreamPlace,
) -> None:
    session, files = spark_place.session, Files(str(spark_place.home / "warehouse"))
    with mock_broker() as broker:
        values: list[Any] = [{"id": n} for n in range(100)]
        broker.produce("events", *values, partition=1)
        broker.produce("events", *values[:40], partition=2)
        given = {
            "stream": broker.stream("events"),
            "format": "json",
            "schema": "id BIGINT",
            "metadata": ["offset"],
        }
        stream = KafkaInput.model_validate(given)
        reader = Reader(session, files, "arrived")
        whole = kafka_read.read_messages(reader, stream, {}, None, per_task=30)
        expected = sorted([(n, n) for n in range(100)] + [(n, n) for n in range(40)])
        assert sorted((row.id, row.offset) for row in whole.frame.collect()) == expected
        assert (whole.rows, whole.position.next) == (140, {0: 0, 1: 100, 2: 40, 3: 0})
        assert len(list((spark_place.home / "warehouse" / "arrived").iterdir())) == 4 + 2, (
            "one folder for each task"
        )
        broker.produce("events", *values, "bad", partition=3)
        with pytest.raises(BadRecord, match="offset 100 of partition 3 is no row"):
            kafka_read.read_messages(reader, stream, {}, whole.position, per_task=30)
