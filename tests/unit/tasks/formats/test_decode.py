"""A file that is not of the form the spec says is refused with its cure, also where other columns
are allowed.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from unstuck.tasks.errors import OutOfMemory
from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.decode import decoded
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.protocol.failure import failure_of
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import found_as

CSV = b"id,region,amount\n1,n,1.5\n"
JSON = b'{"id": 1, "region": "n", "amount": 1.5}\n'


def tables_of(
    path: Path,
    data: bytes,
    form: str = "csv",
    max_bytes: int = 5_000_000,
    zone: str = "UTC",
    **spec: Any,
) -> Iterator[Any]:
    path.write_bytes(data)
    options = spec.pop("options", {"header": "true"} if form == "csv" else {})
    schema = spec.pop("schema", "id BIGINT, region STRING, amount DOUBLE")
    stream = StreamInput(
        stream=str(path.parent), format=form, schema=schema, options=options, **spec
    )
    file = ArrivedFile(str(path), found_as(str(path)))
    return decoded(file, stream, zone, max_bytes)


def rows_of(path: Path, data: bytes, *about: Any, **spec: Any) -> list[dict[str, Any]]:
    """``about``, ``spec``: as of `tables_of`."""
    return [row for table in tables_of(path, data, *about, **spec) for row in table.to_pylist()]


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
def test_a_compressed_file_without_extension_is_recognized_by_content(
    tmp_path: Path, data: bytes, said: str
) -> None:
    for form, options in [
        ("csv", {"encoding": "ISO-8859-1"}),
        ("text", {"encoding": "ISO-8859-1"}),
        ("text", {}),
    ]:
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
def test_a_file_without_any_declared_column_is_always_refused(
    tmp_path: Path, data: bytes, options: dict[str, str], said: str, other: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        rows_of(tmp_path / "a.csv", data, options=options, on_other_columns=other)
    assert said in str(refused.value) or (said == "it has none of them" and other == "fail")


def test_a_column_name_in_another_case_is_reported_and_not_read_as_null(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="it has ID, and the schema says id"):
        rows_of(
            tmp_path / "a.json", JSON + JSON.replace(b"id", b"ID"), "json", on_other_columns="allow"
        )
    nested = b'{"one": {"Part": 1}}\n'
    with pytest.raises(Unreadable, match="it has Part, and the schema says part"):
        rows_of(
            tmp_path / "a.json",
            nested,
            "json",
            schema="one STRUCT<part: INT>",
            on_other_columns="allow",
        )
    both = b'{"id": 1, "ID": 2, "amount": 1.5, "more": 3}\n'
    (row,) = rows_of(tmp_path / "a.json", both, "json", on_other_columns="allow")
    assert row == {"id": 1, "region": None, "amount": 1.5}


def test_json_is_decoded_in_bounded_parts_and_errors_have_their_line(
    tmp_path: Path,
) -> None:
    """Two of these lines have more than 16 MB."""
    lines = [
        b'{"id": %d, "region": "%s", "amount": 1}\n' % (n, b"x" * 9_000_000) for n in (1, 2, 3)
    ]
    bad = b'{"id": "four", "region": null, "amount": 1}\n'
    tables = tables_of(tmp_path / "a.json", b"".join([*lines, bad]), "json", 100_000_000)
    assert next(tables).column("id").to_pylist() == [1, 2]
    with pytest.raises(Unreadable, match="cannot hold 'four'") as refused:
        next(tables)
    assert refused.value.line == 4
    whole = tables_of(tmp_path / "a.json", b"".join(lines), "json", 100_000_000)
    assert [table.column("id").to_pylist() for table in whole] == [[1, 2], [3]]


@pytest.mark.parametrize("name", ["u\u0308ber", "\u2003über"])
def test_a_visually_equal_column_name_is_reported_and_not_read_as_null(
    tmp_path: Path, name: str
) -> None:
    schema, line = "über INT, id INT", json.dumps({name: 1, "id": 1}).encode()
    with pytest.raises(Unreadable, match=r"it has `.*`, and the schema says `über`"):
        rows_of(tmp_path / "a.json", line, "json", schema=schema, on_other_columns="allow")
    two = f"{name},id,über\n1,2,3\n".encode()
    with pytest.raises(Unreadable, match=r"which are one name|twice"):
        rows_of(tmp_path / "a.csv", two, schema=schema, on_other_columns="allow")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""},
            "says .*legacyDateTime",
        ),
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
def test_an_ambiguous_julian_date_is_refused(
    tmp_path: Path, about: dict[str, str], said: str, value: Any, kind: str
) -> None:
    out = pa.BufferOutputStream()
    young = (
        pa.table({"a": [None]})
        if isinstance(value, dict)
        else pa.table({"a": [value.replace(year=1900, day=3)]})
    )
    old = pa.table({"a": [value]})
    young = young.cast(old.schema)
    with pq.ParquetWriter(out, old.schema.with_metadata(about)) as file:
        file.write_table(young.replace_schema_metadata(about))
    rows_of(tmp_path / "a.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}")
    out = pa.BufferOutputStream()
    pq.write_table(old.replace_schema_metadata(about), out)
    if not said:
        assert rows_of(
            tmp_path / "b.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}"
        ) == [{"a": value}]
        return
    with pytest.raises(
        Unreadable, match=f"the column a has a day before 1582-11-01.* from 1 on.*{said}.*CORRECTED"
    ):
        rows_of(tmp_path / "b.parquet", out.getvalue().to_pybytes(), "parquet", schema=f"a {kind}")


# In Berlin the hour from 02:00 to 03:00 is missing on 29 March 2026, and comes twice on 25 October.
LOCAL_TIMES = [
    ("2026-10-25T01:59:59", "2026-10-24T23:59:59+00:00"),
    ("2026-10-25T02:00:00", "2026-10-25T00:00:00+00:00"),
    ("2026-10-25T02:30:00", "2026-10-25T00:30:00+00:00"),
    ("2026-10-25T03:00:00", "2026-10-25T02:00:00+00:00"),
    ("2026-03-29T01:59:59", "2026-03-29T00:59:59+00:00"),
    ("2026-03-29T03:00:00", "2026-03-29T01:00:00+00:00"),
]
WITH_OFFSET = [
    ("2026-10-25T02:30:00+02:00", "2026-10-25T00:30:00+00:00"),
    ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00+00:00"),
]
BERLIN = "Europe/Berlin"


def in_file(form: str, texts: list[str]) -> bytes:
    """A file of this format with the times in its column ``at``."""
    if form == "orc":
        times = pa.table(
            {"at": pa.array(map(datetime.datetime.fromisoformat, texts), pa.timestamp("us"))}
        )
        orc.write_table(times, data := io.BytesIO())
        return data.getvalue()
    lines = ["at", *texts] if form == "csv" else [json.dumps({"at": text}) for text in texts]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("form", "by_option"),
    [("csv", False), ("csv", True), ("json", False), ("json", True), ("orc", False)],
    ids=lambda value: {False: "zone of the fleet", True: "zone of the stream"}.get(value, value),
)
def test_an_ambiguous_local_time_means_the_first_occurrence(
    tmp_path: Path, form: str, by_option: bool
) -> None:
    options = {"header": "true"} if form == "csv" else {}
    options |= {"timeZone": BERLIN} if by_option else {}
    times = LOCAL_TIMES if form == "orc" else LOCAL_TIMES + WITH_OFFSET
    data, zone = in_file(form, [text for text, _ in times]), "Asia/Tokyo" if by_option else BERLIN
    rows = rows_of(
        tmp_path / f"a.{form}", data, form, zone=zone, options=options, schema="at TIMESTAMP"
    )
    assert [row["at"].astimezone(datetime.UTC).isoformat() for row in rows] == [
        instant for _, instant in times
    ]


@pytest.mark.parametrize("form", ["csv", "json", "orc"])
def test_a_nonexistent_local_time_is_refused(tmp_path: Path, form: str) -> None:
    data = in_file(form, ["2026-03-29T01:59:59", "2026-03-29T02:30:00"])
    with pytest.raises(Unreadable, match="02:30"):
        rows_of(tmp_path / f"a.{form}", data, form, zone=BERLIN, schema="at TIMESTAMP")


def test_a_text_that_starts_like_a_compressed_file_is_read_as_text(tmp_path: Path) -> None:
    for first in ("PAR1", "BZh", "ORC", "PK", "Obj"):
        (row,) = rows_of(
            tmp_path / "a.csv",
            f"{first},region\n1,n\n".encode(),
            schema=f"{first} INT, region STRING",
        )
        assert row == {first: 1, "region": "n"}


@pytest.mark.parametrize(
    ("text", "options", "value"),
    [
        ("1.234.567,50", {"decimal": ",", "thousands": "."}, 1234567.5),
        ("-0,5", {"decimal": ","}, -0.5),
        ("1 234", {"thousands": " "}, 1234.0),
        ("12.5", {"decimal": ","}, None),
        ("1.23,5", {"decimal": ",", "thousands": "."}, None),
        ("1,5", {}, None),
    ],
)
def test_numbers_use_exactly_the_configured_separators(
    tmp_path: Path, text: str, options: dict[str, str], value: float | None
) -> None:
    data, more = f"a;b\n{text};{text}\n".encode(), {"header": "true", "sep": ";", **options}
    schema = "a DOUBLE, b DECIMAL(12,2)"
    if value is None:
        with pytest.raises(
            Unreadable, match=rf"line 2.*{re.escape(text)}|{re.escape(text)}.*Line 2"
        ):
            rows_of(tmp_path / "a.csv", data, schema=schema, options=more)
    else:
        assert rows_of(tmp_path / "a.csv", data, schema=schema, options=more) == [
            {"a": value, "b": Decimal(str(value)).quantize(Decimal("0.01"))}
        ]


def repeated(value: Any, rows: int) -> bytes:
    """A Parquet file of some hundred bytes with one value in all rows."""
    column = pa.DictionaryArray.from_arrays(pa.repeat(0, rows).cast(pa.int32()), pa.array([value]))
    pq.write_table(
        pa.table({"a": column}), data := io.BytesIO(), compression="zstd", store_schema=False
    )
    return data.getvalue()


ZEROS = b"0" * 10**7


@pytest.mark.parametrize(
    ("name", "data", "schema", "message"),
    [
        (
            "a.txt.zst",
            pa.compress(ZEROS, "zstd", asbytes=True),
            "a STRING",
            "a line has more than 1,000,000 bytes",
        ),
        ("a.txt.gz", gzip.compress(b"\n" * 10**7), "a STRING", "beyond the bound of 5,000,000"),
        (
            "a.csv.gz",
            gzip.compress(b'"' + ZEROS[: 4 * 10**6]),
            "a STRING",
            "a record has more than 1,000,000 bytes",
        ),
        (
            "a.json.gz",
            gzip.compress(b'{"a": "' + ZEROS),
            "a STRING",
            "a line has more than 1,000,000 bytes",
        ),
        ("a.json.gz", gzip.compress(b" \n" * 10**7), "a STRING", "beyond the bound of 5,000,000"),
        (
            "a.parquet",
            repeated(1, 10**6),
            "a BIGINT",
            "unpacked it has 8,000,000 or more, beyond the bound",
        ),
        ("a.parquet", repeated("x" * 10**4, 10**5), "a STRING", "beyond the bound of 5,000,000"),
        (
            "a.parquet",
            repeated("x" * 2 * 10**6, 1),
            "a STRING",
            "a row has more than 1,000,000 bytes",
        ),
    ],
)
def test_a_decompression_bomb_is_refused_with_its_size(
    tmp_path: Path, name: str, data: bytes, schema: str, message: str
) -> None:
    form = name.split(".")[1].replace("txt", "text")
    options = {"header": "false"} if form == "csv" else {}
    with pytest.raises(Unreadable, match=message):
        rows_of(tmp_path / name, data, form, schema=schema, options=options, max_row_bytes=10**6)


def test_an_out_of_memory_error_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **more: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    for form, call in {
        "csv": "pyarrow.csv.read_csv",
        "parquet": "pyarrow.parquet.ParquetFile",
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(call, fails)
            with pytest.raises(
                OutOfMemory, match=r"a\.data takes more memory than this worker has"
            ) as refused:
                rows_of(tmp_path / "a.data", CSV, form)
            failure = failure_of(refused.value)
            assert (failure.code, failure.recoverable) == ("OUT_OF_MEMORY", True)
