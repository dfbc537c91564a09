"""A stream with state reads what Spark reads: what Spark cannot understand is refused with its file, and is no null."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from unstuck import Unrecoverable
from unstuck.tasks.errors import BadFile
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.read.structured import Resume, open_stream, stage_stream
from unstuck.tasks.warehouse.files import Files

OLD = pyspark.__version__.startswith("3.")  # which names the file at the end, and not of every cause
HEADER = {"header": "true"}
ODD = {
    "columns in another order": ("csv", HEADER, b"amount,id,region\n1.5,2,n\n", "CSV header"),
    "a column renamed": ("csv", HEADER, b"id,area,amount\n2,n,1.5\n", "CSV header"),
    "a column missing": ("csv", HEADER, b"id,region\n2,n\n", "CSV header"),
    "a header twice": ("csv", HEADER, b"id,region,amount,amount\n2,n,1.5,3\n", "CSV header"),
    "another separator": ("csv", HEADER, b"id;region;amount\n2;n;1,5\n", "CSV header"),
    "a decimal comma": ("csv", HEADER, b'id,region,amount\n2,n,"1,5"\n', '"1,5"'),
    "a field too few": ("csv", HEADER, b"id,region,amount\n2,n\n", "2,n"),
    "a field too many": ("csv", HEADER, b"id,region,amount\n2,n,1.5,9\n", "2,n,1.5,9"),
    "a line end in quotes": ("csv", HEADER, b'id,region,amount\n2,"n\nn",1.5\n', '2,"n'),
    "another number than a whole one": ("csv", {}, b"2.5,n,1.5\n", '"2.5"'),
    "a line that is no JSON": (
        "json",
        {},
        b'{"id": 2, "region": "n", "amount": 1}\n{"id": 3, "reg\n',
        "Malformed records",
    ),
}


def load(
    session: Any, home: Path, form: str, options: dict[str, str], column: str = "*", more: str = ""
) -> list[dict[str, Any]]:
    """Stage what lies in the folder ``in``, of it one ``column`` or all. Returns the rows."""
    schema = f"id BIGINT, region STRING, amount DOUBLE{more}"
    stream = StreamInput(stream=str(home / "in"), format=form, schema=schema, options=options, state=True)
    files = Files(str(home / "warehouse"))
    frame = open_stream(session, "events", stream)
    resume = Resume("job", "_staging/job/load/1/out.checkpoint", None, stream.stream, 1)
    staged = stage_stream(files, "_staging/job/load/1/out", frame.select(column), (), resume)
    return [row for f in staged.files for row in pq.read_table(files.uri(f.path)).to_pylist()]


def arrive(home: Path, name: str, data: bytes) -> Path:
    (path := home / "in" / name).parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("what", ODD)
def test_what_spark_would_read_as_null_or_into_the_wrong_column_is_refused_with_its_file(
    session: Any, tmp_path: Path, what: str
) -> None:
    form, options, data, said = ODD[what]
    arrive(tmp_path, f"good.{form}", b'{"id": 1}\n' if form == "json" else b"id,region,amount\n" if options else b"")
    path = arrive(tmp_path, f"odd.{form}", data)
    with pytest.raises(BadFile) as refused:  # lines are counted whole also if Spark needs one column alone
        load(session, tmp_path, form, options, "id" if what.startswith("a field") else "*")
    if not OLD:
        assert str(refused.value).startswith(f"file://{path}. ")
    elif said != "Malformed records":  # of a line that is no JSON Spark 3.5 does not name the file
        assert f"file://{path}" in str(refused.value)
    assert said in str(refused.value)
    assert "Nothing was loaded. Mend the file" in str(refused.value)


def test_a_file_of_another_type_is_refused_and_one_that_is_cut_short_is_named(session: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["2"]}), arrive(tmp_path / "a", "odd.parquet", b""))
    with pytest.raises(BadFile, match=r"odd\.parquet.*column:? \[id\]"):
        load(session, tmp_path / "a", "parquet", {})
    whole = gzip.compress(b"".join(b"%d,n,1\n" % n for n in range(5000)))
    arrive(tmp_path / "b", "cut.csv.gz", whole[: len(whole) // 2])
    with pytest.raises(Exception, match="EOFException" if OLD else r"cut\.csv\.gz"):
        load(session, tmp_path / "b", "csv", {})


def test_who_wants_nulls_for_what_spark_cannot_read_says_so(session: Any, tmp_path: Path) -> None:
    arrive(tmp_path, "odd.csv", b"number,region,amount\n2,n,x\n")
    lenient = {**HEADER, "Mode": "PERMISSIVE", "enforceschema": "true"}
    assert load(session, tmp_path, "csv", lenient) == [{"id": 2, "region": "n", "amount": None}]


def test_files_in_folders_below_are_read_and_the_names_of_folders_are_no_columns(session: Any, tmp_path: Path) -> None:
    for number, name in enumerate(["a.json", "2024/01/b.json", "day=1/c.json"]):
        arrive(tmp_path, name, b'{"id": %d, "region": "n", "amount": 1.5}' % number)
    rows = load(session, tmp_path, "json", {})
    assert sorted(row["id"] for row in rows) == [0, 1, 2]
    assert all([*row] == ["id", "region", "amount"] for row in rows)


def test_a_column_that_folders_are_named_by_is_refused_or_read_by_sparks_own_rule(session: Any, tmp_path: Path) -> None:
    arrive(tmp_path, "day=1/c.json", b'{"id": 1, "region": "n", "amount": 1.5}')
    with pytest.raises(Unrecoverable, match=r'the column Day .*{recursiveFileLookup: "false"'):
        load(session, tmp_path, "json", {}, more=", Day INT")
    (row,) = load(session, tmp_path, "json", {"recursiveFileLookup": "false"}, more=", Day INT")
    assert row["Day"] == 1
