"""The value of a column in the name of a folder is the value of its rows, and never a silent
null.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.decode import decoded
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import found_as

FORMATS = ["csv", "json", "parquet", "orc"]
HOUR = "id BIGINT, day DATE, hour STRING"
MARCH = datetime.date(2026, 3, 1)


def read(
    folder: Path, form: str, below: str, row: dict[str, Any], schema: str, **spec: Any
) -> list[dict[str, Any]]:
    """The rows of a file with one ``row`` in a folder ``below`` that of a stream."""
    (path := folder / below / f"1.{form}").parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif form == "orc":
        orc.write_table(pa.Table.from_pylist([row]), path)
    elif form == "json":
        path.write_text(json.dumps(row, default=str))
    else:
        path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        spec = {"options": {"header": "true"}, **spec}
    stream = StreamInput(stream=str(folder), format=form, schema=schema, **spec)
    file = ArrivedFile(str(path), found_as(str(path)))
    return [found for table in decoded(file, stream, "UTC", 2**30) for found in table.to_pylist()]


@pytest.mark.parametrize("other", ["fail", "allow"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("below", "schema", "values"),
    [
        ("day=2026-03-01/hour=01", HOUR, {"day": MARCH, "hour": "01"}),
        (
            "day=2026-03-01/x/HOUR=01",
            "id BIGINT, day STRING, hour INT",
            {"day": "2026-03-01", "hour": 1},
        ),
        (
            "day=2026-03-02/hour=__HIVE_DEFAULT_PARTITION__",
            HOUR,
            {"day": MARCH.replace(day=2), "hour": None},
        ),
        ("day=2026-03-01/hour=a%3Ab", HOUR, {"day": MARCH, "hour": "a:b"}),
        ("other=1", "id BIGINT", {}),
    ],
)
def test_a_column_in_a_folder_name_has_the_value_of_the_folder(
    tmp_path: Path, form: str, below: str, schema: str, values: dict[str, Any], other: str
) -> None:
    assert read(tmp_path, form, below, {"id": 1}, schema, on_other_columns=other) == [
        {"id": 1, **values}
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_contradicts_its_folder_value_is_refused(tmp_path: Path, form: str) -> None:
    row, schema = {"id": 1, "hour": 2}, "id BIGINT, hour BIGINT"
    for other in ("fail", "allow"):
        assert read(tmp_path, form, "hour=2", row, schema, on_other_columns=other) == [row]
        for below in ("hour=3", "hour=__HIVE_DEFAULT_PARTITION__"):
            with pytest.raises(
                Unreadable, match=r"(line|row) [12]: the column hour holds 2, and its folder says"
            ):
                read(tmp_path, form, below, row, schema, on_other_columns=other)


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ("day=2026-02-30", "its folder day=2026-02-30 has no date for the column day"),
        (
            "day=2026-03-01/day=2026-03-02",
            "two of its folders give the column day different values",
        ),
    ],
)
def test_a_folder_without_a_value_of_the_type_is_refused(
    tmp_path: Path, below: str, message: str
) -> None:
    with pytest.raises(Unreadable, match=message):
        read(tmp_path, "json", below, {"id": 1}, "id BIGINT, day DATE")


def test_positional_columns_exclude_folder_columns(tmp_path: Path) -> None:
    (path := tmp_path / "day=2026-03-01" / "1.csv").parent.mkdir()
    path.write_text("7,n\n")
    stream = StreamInput(
        stream=str(tmp_path), format="csv", schema="id BIGINT, day DATE, region STRING"
    )
    (table,) = decoded(ArrivedFile(str(path), found_as(str(path))), stream, "UTC", 2**30)
    assert table.to_pylist() == [{"id": 7, "day": MARCH, "region": "n"}]
