"""The place of a value that does not fit, in files that are read in several parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.unit.tasks.formats.test_decode import rows_of
from unstuck.tasks.formats.file_content import Unreadable

ROWS = 230_000  # more than any format reads at once
WIDE = 20_000  # of a kilobyte each: more than is read of a text at once


def column(*bad: int) -> pa.Table:
    """``ROWS`` numbers that fit a byte, but for the rows ``bad``, counted from 1."""
    numbers = [1] * ROWS
    for row in bad:
        numbers[row - 1] = 300
    return pa.table({"id": pa.array(numbers, pa.int64())})


def parquet(*bad: int) -> bytes:
    pq.write_table(column(*bad), out := pa.BufferOutputStream())
    return bytes(out.getvalue().to_pybytes())


def stripes(*bad: int) -> bytes:
    """ORC with several stripes."""
    out = pa.BufferOutputStream()
    with orc.ORCWriter(out, stripe_size=1, batch_size=1000) as writer:
        for part in column(*bad).to_batches(max_chunksize=10_000):
            writer.write(pa.Table.from_batches([part]))
    data = bytes(out.getvalue().to_pybytes())
    assert orc.ORCFile(pa.BufferReader(data)).nstripes > 2
    return data


def json_lines(*bad: int) -> bytes:
    return b"".join(
        b'{"id": 300}\n' if row in bad else b'{"id": 1}\n' for row in range(1, ROWS + 1)
    )


def csv(*bad: int) -> bytes:
    """With a header, an empty line after it, and an ignored column that makes the file large."""
    lines = (b"%d,%s\n" % (300 if row in bad else 1, b"x" * 1000) for row in range(1, WIDE + 1))
    return b"id,wide\n\n" + b"".join(lines)


def text(*bad: int) -> bytes:
    return b"".join(
        b"%s\n" % (b"\xff" if row in bad else b"x" * 1000) for row in range(1, WIDE + 1)
    )


@pytest.mark.variant
@pytest.mark.parametrize(
    ("form", "schema", "make", "rows", "first_line"),
    [
        ("parquet", "id TINYINT", parquet, ROWS, 1),
        ("orc", "id TINYINT", stripes, ROWS, 1),
        ("json", "id TINYINT", json_lines, ROWS, 1),
        ("csv", "id TINYINT, wide STRING", csv, WIDE, 3),
        ("text", "line STRING", text, WIDE, 1),
    ],
)
def test_the_first_mismatched_value_is_reported_with_its_row_or_line(
    tmp_path: Path, form: str, schema: str, make: Callable[..., bytes], rows: int, first_line: int
) -> None:
    for bad in ([rows], [rows - 7, rows], [rows // 2, rows], [1, 2, rows]):
        data = make(*bad)
        with pytest.raises(Unreadable) as refused:
            rows_of(tmp_path / f"a.{form}", data, form, max_bytes=100_000_000, schema=schema)
        assert refused.value.line == bad[0] + first_line - 1, bad
