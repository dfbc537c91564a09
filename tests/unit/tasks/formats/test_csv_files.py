"""CSV files against Python's own reader: whatever stands in a field, and wherever a block of the
file ends.
"""

from __future__ import annotations

import csv
import io
import random

import pytest

from unstuck.tasks.formats.csv_files import read_csv
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_options import FileOptions, file_options

NAMES = ["a", "b", "c"]
COLUMNS: Fields = [{"name": name, "type": "string"} for name in NAMES]
PIECES = ["x", "ü", '"', '""', ",", "\n", "\r\n", " ", "\\", "", "7"]


class ShortReads(io.BytesIO):
    """A stream that answers each read with at most ``most`` bytes."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most)


def found(data: bytes, size: int, options: FileOptions) -> list[list[str | None]]:
    tables = [table for table, _ in read_csv(ShortReads(data, size), options, COLUMNS, 2**26)]
    return [list(row.values()) for table in tables for row in table.to_pylist()]


@pytest.mark.variant
@pytest.mark.parametrize("seed", range(60))
def test_each_field_equals_the_value_written_by_python(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        ["".join(chance.choices(PIECES, k=chance.randrange(4))) for _ in NAMES] for _ in range(30)
    ]
    written = io.StringIO(newline="")
    quoting = chance.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
    csv.writer(written, lineterminator=chance.choice(["\n", "\r\n"]), quoting=quoting).writerows(
        [NAMES, *records]
    )
    data = written.getvalue().encode()
    for size in (1, 7, 64, 10_000):
        rows = found(data, size, FileOptions(header=True))
        assert [[field or "" for field in row] for row in rows] == records
        if quoting == csv.QUOTE_ALL:
            assert None not in [field for row in rows for field in row]


@pytest.mark.variant
@pytest.mark.parametrize("seed", range(60))
def test_quotes_inside_a_field_are_literal_across_block_boundaries(seed: int) -> None:
    chance = random.Random(seed)
    records = [[chance.choice(['5"', 'a "b" c', '7""', "x"]) for _ in NAMES] for _ in range(30)]
    data = "".join(",".join([*record[:2], '"q,\n"""']) + "\n" for record in records).encode()
    for size in (1, 7, 64, 10_000):
        assert found(data, size, FileOptions()) == [[*record[:2], 'q,\n"'] for record in records]


@pytest.mark.parametrize("seed", range(60))
def test_a_record_with_a_wrong_number_of_fields_is_reported_with_its_line(seed: int) -> None:
    chance = random.Random(seed)
    before = "".join(
        chance.choices(['1,"x\ny",2\n', "1,2,3\n", "\n", '5",6,7\r\n'], k=chance.randrange(20))
    )
    wrong = chance.choice(["1,2\n", "1,2,3,4\n", '"1\n2",3\n'])
    for size in (3, 10_000):
        with pytest.raises(Unreadable) as raised:
            found((before + wrong + "1,2,3\n").encode(), size, FileOptions())
        assert raised.value.line == before.count("\n") + 1


def test_an_escape_makes_the_next_character_literal() -> None:
    options = file_options("csv", {"escape": "\\"})
    for size in (1, 5, 1000):
        rows = found(b'"a\\"b\\\\","x, y",z\n"""",\\,,"\\\\"\n', size, options)
        assert rows == [['a"b\\', "x, y", "z"], ['"', ",", "\\"]]


@pytest.mark.parametrize(
    ("format", "options", "said"),
    [
        ("csv", {"headr": "true"}, "no option headr; there are: charset, decimal, delimiter"),
        ("csv", {"mode": "PERMISSIVE"}, "no option mode"),
        ("csv", {"header": "yes"}, "must be true or false"),
        ("csv", {"timeZone": "Nowhere/Town"}, "'Nowhere/Town' is no time zone"),
        ("csv", {"sep": "||"}, "must be one character"),
        ("json", {"encoding": "latin-9000"}, "no encoding"),
        ("parquet", {"mergeSchema": "true"}, "no option mergeschema; there are: none"),
    ],
)
def test_an_unsupported_option_is_refused(format: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        file_options(format, options)
