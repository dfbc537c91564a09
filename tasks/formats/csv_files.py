"""Reads CSV as RFC 4180 defines it into tables of text, or reports the line of an error."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from unstuck.tasks.formats.file_content import Placed, Unreadable, beyond_row, check_utf8, in_utf8
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_options import FileOptions


def read_csv(
    stream: Any, options: FileOptions, columns: Fields, max_record: int
) -> Iterator[Placed]:
    """Read the records of a file into tables of text columns.

    Args:
        columns: names by position, for a file without a header.
        max_record: maximum bytes of a record.

    Raises: Unreadable.
    """
    form = _Form(options)
    names: list[str] = []
    if not options.header:
        names = [column["name"] for column in columns]
    is_first = options.header is None
    for line, block in form.blocks(in_utf8(stream, options.encoding), max_record):
        check_utf8(block, line)
        if is_first and block.strip(b"\r\n"):
            form.check_no_header(block, columns, line)
            is_first = False
        if not names:  # so far there are empty lines alone
            names, begin = form.header(block, len(columns), line)
            line, block = line + block.count(b"\n", 0, begin), block[begin:]
        if block and names:
            yield form.table(block, names, line)
    if names and options.header:
        yield form.table(b"", names, 1)  # a header alone names columns as well


class _Form:
    """How fields and records end."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._quote = options.quote.encode()
        separator, quote, escape = (
            re.escape(mark.encode()) for mark in (options.separator, options.quote, options.escape)
        )
        plain, inner = rb"[^%b\r\n]*+" % separator, rb"[^%b]*+(?:%b%b[^%b]*+)*+" % ((quote,) * 4)
        if escape:
            plain = rb"(?:[^%b%b\r\n]|%b[^\r\n])*+" % (separator, escape, escape)
            inner = rb"(?:[^%b%b]|%b.|%b%b)*+" % (quote, escape, escape, quote, quote)
        field = rb"(?:%b%b%b|(?!%b)%b)" % (quote, inner, quote, quote, plain) if quote else plain
        record = rb"(?:%b%b)*+%b(?:\r\n|\n|\r(?=.))" % (field, separator, field)
        self._records_of = re.compile(rb"(?:%b)*+" % record, re.DOTALL)
        self._field = re.compile(rb"(%b)(%b|\r\n|\n|\r|\Z)" % (field, separator), re.DOTALL)

    def blocks(self, blocks: Iterator[bytes], max_record: int) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole records, each with the number of its first line.

        Raises: Unreadable.
        """
        rest, line = b"", 1
        for block in blocks:
            rest += block
            if cut := self._end_of_records(rest):
                yield line, rest[:cut]
                line, rest = line + rest.count(b"\n", 0, cut), rest[cut:]
            if len(rest) > max_record:
                raise beyond_row("record", max_record, line, rest)
            deque(self._records(rest, line, whole=False), 0)  # refuses quotes in the wrong place
        if rest:
            deque(self._records(rest, line), 0)
            yield line, rest

    def _end_of_records(self, data: bytes) -> int:
        """Return the end of the last record that is whole and well formed."""
        if self._options.escape or (self._quote and self._quote in data):
            records = self._records_of.match(data)
            return records.end() if records else 0
        return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1

    def _records(
        self, data: bytes, line: int, *, whole: bool = True
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the end and the fields of each record that is not an empty line.

        Args:
            whole: nothing follows after ``data``, so its last record is one, too.

        Raises: Unreadable: a field has a quote that it must not have, or that is never closed.
        """
        at, fields = 0, list[bytes]()
        while at < len(data) or fields:
            match = self._field.match(data, at)
            if not whole and self._may_go_on(data, at, match):
                return
            if match is None:
                raise Unreadable(
                    "a field begins with a quote, and text follows after the closing one, or there "
                    "is none. A quote within quotes is doubled, unless options: says another way, "
                    "such as {escape: \\}",
                    line + data.count(b"\n", 0, at),
                    data[data.rfind(b"\n", 0, at) + 1 : at + 300],
                )
            fields.append(match[1])
            at = match.end()
            if match[2] != self._options.separator.encode():
                if fields != [b""]:
                    yield at, fields
                fields = []

    def _may_go_on(self, data: bytes, at: int, match: re.Match[bytes] | None) -> bool:
        """Whether the field at ``at``, with its ``match``, is open at the end of ``data``."""
        if match is not None:
            return match.end() == len(data)
        if self._options.escape and data.endswith(self._options.escape.encode()):
            return True
        return self._field.match(data + self._quote, at) is not None

    def header(self, block: bytes, columns: int, line: int) -> tuple[list[str], int]:
        """Return the names of the columns, and the position of the first record.

        ``columns``: number of columns of the schema. Raises: Unreadable.
        """
        end, fields = next(self._records(block, line), (len(block), []))
        names = [self._name(cell.decode()) for cell in fields]
        lower = [name.lower() for name in names]
        if twice := next((name for name in names if lower.count(name.lower()) > 1), None):
            many = f"the header names the column {twice!r} twice: {', '.join(names)}"
            raise Unreadable(many, line, block[:end])
        cure = self._other_separator(names[0]) if len(names) == 1 < columns else ""
        if cure:
            many = f"the header names one column, and the schema has {columns}{cure}"
            raise Unreadable(many, line, block[:end])
        return names, end

    def check_no_header(self, block: bytes, columns: Fields, line: int) -> None:
        """Check that the first record does not look like a header.

        Raises:
            Unreadable: it has the names of all columns, or a name in a column of another type than
                text.
        """
        end, fields = next(self._records(block, line))
        cells = [self._name(cell.decode()).lower() for cell in fields]
        names = {str(column["name"]).lower() for column in columns}
        misplaced = any(
            cell in names and column["type"] != "string"
            for cell, column in zip(cells, columns, strict=False)
        )
        if misplaced or (len(names) > 1 and names <= {*cells}):
            raise Unreadable(
                "the file begins with names of columns, and the option header is not given: say "
                "options: "
                '{header: "true"}, or header: "false" if they are values',
                line + block.count(b"\n", 0, len(block) - len(block.lstrip(b"\r\n"))),
                block[:end].strip(b"\r\n"),
            )

    def _other_separator(self, field: str) -> str:
        """Return a hint at the option if a single ``field`` looks like several; else empty."""
        others = ",;\t|".replace(self._options.separator, "")
        separator = json.dumps(next(filter(field.__contains__, others), ""))
        if separator == '""':
            return ""
        return f". If {separator} separates the fields, say options: {{sep: {separator}}}"

    def _name(self, field: str) -> str:
        quote = self._options.quote
        if quote and len(field) > 1 and field.startswith(quote) and field.endswith(quote):
            field = field[1:-1].replace(quote * 2, quote)
        return field.strip()

    def table(self, block: bytes, names: list[str], line: int) -> Placed:
        """Return a table of text. Raises: Unreadable: a record has too many or too few fields."""
        import pyarrow as pa
        import pyarrow.csv as csv

        line_of = partial(self._line_of, block, line)
        invalid = []

        def refuse(row: Any) -> str:
            invalid.append(row)
            return "error"

        numbered = [str(number) for number in range(len(names))]
        try:
            table = csv.read_csv(
                pa.BufferReader(block or b"\n"),
                csv.ReadOptions(
                    column_names=numbered, block_size=max(len(block), 1) + 1, use_threads=False
                ),
                csv.ParseOptions(
                    delimiter=self._options.separator,
                    quote_char=self._options.quote or False,
                    escape_char=self._options.escape or False,
                    newlines_in_values=True,
                    invalid_row_handler=refuse,
                ),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(numbered, pa.string()),
                    null_values=[self._options.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if not invalid:
                raise Unreadable(f"the file cannot be read as CSV: {error}", line) from error
            row = invalid[0]
            cure = self._other_separator(row.text) if row.actual_columns == 1 else ""
            raise Unreadable(
                f"a record has {row.actual_columns} field{'s' * (row.actual_columns != 1)}, where "
                f"there are {len(names)} columns: {', '.join(names)}{cure}",
                line_of(row.number - 1),
                row.text,
            ) from error
        return table.rename_columns(names), line_of

    def _line_of(self, block: bytes, line: int, row: int) -> int:
        """Return the line of a row of ``block``, which begins at ``line``."""
        ends = (end for end, _ in self._records(block, line))
        begin = next(islice(ends, row - 1, None)) if row else 0
        blank = len(block) - begin - len(block[begin:].lstrip(b"\r\n"))
        return line + block.count(b"\n", 0, begin + blank)
