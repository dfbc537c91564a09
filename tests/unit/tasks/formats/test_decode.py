"""A file that is not of the form the spec says is refused with its cure, also where other columns are allowed."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.decode import decoded
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import found_as

CSV = b"id,region,amount\n1,n,1.5\n"
JSON = b'{"id": 1, "region": "n", "amount": 1.5}\n'


def rows_of(path: Path, data: bytes, form: str = "csv", **spec: Any) -> list[dict[str, Any]]:
    path.write_bytes(data)
    options = spec.pop("options", {"header": "true"} if form == "csv" else {})
    schema = spec.pop("schema", "id BIGINT, region STRING, amount DOUBLE")
    stream = StreamInput(stream=str(path.parent), format=form, schema=schema, options=options, **spec)
    file = ArrivedFile(str(path), found_as(str(path)))
    return [row for table in decoded(file, stream, "UTC") for row in table.to_pylist()]


def zipped() -> bytes:
    with zipfile.ZipFile(data := io.BytesIO(), "w") as archive:
        archive.writestr("a.csv", CSV)
    return data.getvalue()


def parquet() -> bytes:
    pq.write_table(pa.table({"line": ["a"]}), data := io.BytesIO())
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(CSV), r"packed by gzip.*\.gz"),
        (bz2.compress(CSV), r"packed by bz2.*\.bz2"),
        (pa.compress(CSV, "zstd", asbytes=True), r"packed by zstd.*\.zst"),
        (zipped(), "is a zip archive"),
        (parquet(), "is Parquet"),
    ],
    ids=["gzip", "bz2", "zstd", "zip", "parquet"],
)
def test_a_packed_file_whose_name_does_not_say_so_is_told_by_its_content(
    tmp_path: Path, data: bytes, said: str
) -> None:
    for form, options in [("csv", {"encoding": "ISO-8859-1"}), ("text", {"encoding": "ISO-8859-1"}), ("text", {})]:
        with pytest.raises(Unreadable, match=said):
            rows_of(tmp_path / "a.txt", data, form, options=options, schema="line STRING")


@pytest.mark.parametrize("other", ["fail", "allow"])
@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (b"id;region;amount\n1;n;1.5\n", {"header": "true"}, 'say options: {sep: ";"}'),
        (b"id;region;amount\n1;n;1,5\n", {"header": "true"}, 'say options: {sep: ";"}'),
        (b"id\tregion\tamount\n1\tn\t1.5\n", {"header": "true"}, r'say options: {sep: "\t"}'),
        (b"1|n|1.5\n", {}, 'say options: {sep: "|"}'),
        (CSV, {"header": "true", "sep": ";"}, 'say options: {sep: ","}'),
        (b"nr,area\n1,n\n", {"header": "true"}, "it has none of them"),
    ],
)
def test_a_file_with_none_of_the_columns_is_refused_also_where_other_columns_are_allowed(
    tmp_path: Path, data: bytes, options: dict[str, str], said: str, other: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        rows_of(tmp_path / "a.csv", data, options=options, on_other_columns=other)
    assert said in str(refused.value) or (said == "it has none of them" and other == "fail")


def test_a_name_that_differs_in_case_alone_is_told_and_not_read_as_null(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="it has ID, and the schema says id"):
        rows_of(tmp_path / "a.json", JSON + JSON.replace(b"id", b"ID"), "json", on_other_columns="allow")
    nested = b'{"one": {"Part": 1}}\n'
    with pytest.raises(Unreadable, match="it has Part, and the schema says part"):
        rows_of(tmp_path / "a.json", nested, "json", schema="one STRUCT<part: INT>", on_other_columns="allow")
    both = b'{"id": 1, "ID": 2, "amount": 1.5, "more": 3}\n'
    (row,) = rows_of(tmp_path / "a.json", both, "json", on_other_columns="allow")
    assert row == {"id": 1, "region": None, "amount": 1.5}


@pytest.mark.parametrize("name", ["u\u0308ber", "\u2003über"])
def test_a_name_that_is_the_same_for_people_is_told_and_not_read_as_null(tmp_path: Path, name: str) -> None:
    schema, line = "über INT, id INT", json.dumps({name: 1, "id": 1}).encode()
    with pytest.raises(Unreadable, match=r"it has `.*`, and the schema says `über`"):
        rows_of(tmp_path / "a.json", line, "json", schema=schema, on_other_columns="allow")
    two = f"{name},id,über\n1,2,3\n".encode()
    with pytest.raises(Unreadable, match=r"which are one name|twice"):
        rows_of(tmp_path / "a.csv", two, schema=schema, on_other_columns="allow")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, "says .*legacyDateTime"),
        ({"org.apache.spark.version": "2.4.8"}, "Spark before 3.0"),
        ({"org.apache.spark.sql.parquet.row.metadata": "{}"}, "Spark before 3.0"),
        ({"org.apache.spark.version": "4.0.0"}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime.date(1, 1, 1), "DATE"),
        (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), "TIMESTAMP"),
        ({"on": [datetime.date(1, 1, 1)]}, "STRUCT<on: ARRAY<DATE>>"),
    ],
)
def test_an_old_day_of_the_julian_calendar_is_refused_and_not_read_as_another_day(
    tmp_path: Path, about: dict[str, str], said: str, value: Any, kind: str
) -> None:
    out = pa.BufferOutputStream()
    young = pa.table({"a": [None]}) if isinstance(value, dict) else pa.table({"a": [value.replace(year=1900, day=3)]})
    old = pa.table({"a": [value]})
    young = young.cast(old.schema)
    with pq.ParquetWriter(out, old.schema.with_metadata(about)) as file:
        file.write_table(young.replace_schema_metadata(about))
    rows_of(tmp_path / "a.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}")
    out = pa.BufferOutputStream()
    pq.write_table(old.replace_schema_metadata(about), out)
    if not said:
        assert rows_of(tmp_path / "b.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}") == [
            {"a": value}
        ]
        return
    with pytest.raises(Unreadable, match=f"the column a has a day before 1582-11-01.* from 1 on.*{said}.*CORRECTED"):
        rows_of(tmp_path / "b.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}")


def test_a_text_that_only_begins_like_a_packed_file_is_read(tmp_path: Path) -> None:
    for first in ("PAR1", "BZh", "ORC", "PK", "Obj"):
        (row,) = rows_of(tmp_path / "a.csv", f"{first},region\n1,n\n".encode(), schema=f"{first} INT, region STRING")
        assert row == {first: 1, "region": "n"}
