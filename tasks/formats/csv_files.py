"""CSV as RFC 4180 has it, as tables of text: each record in its place, or the line that breaks the
form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from unstuck.tasks.formats.file_content import Placed, Unreadable, beyond_row, check_utf8, in_utf8
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_options import FileOptions


def read_csv(
    stream: Any, options: FileOptions, columns: Fields, max_record: int
) -> Iterator[Placed]:
    """Tables of the records of a file, all of whose columns are text.

    Args:
        columns: by position, of a file without a header.
        max_record: in bytes.

    Raises: Unreadable.
    """
    form = _Form(options)
    names = None if options.header else [column["name"] for column in columns]
    unsure = options.header is None
    for line, block in form.blocks(in_utf8(stream, options.encoding), max_record):
        check_utf8(block, line)
        if unsure and block.strip(b"\r\n"):
            form.check_no_header(block, columns, line)
            unsure = False
        if names is None:
            header, begin = form.header(block, line)
            if len(header) == 1 < len(columns) and (cure := form.other_separator(header[0])):
                many = f"the schema has {len(columns)}"
                raise Unreadable(
                    f"the header names one column, and {many}{cure}", line, block[:begin]
                )
            names = header or None  # so far there are empty lines alone
            line, block = line + block.count(b"\n", 0, begin), block[begin:]
        if block and names is not None:
            yield form.table(block, names, line)
    if names is not None and options.header:
        yield form.table(b"", names, 1)  # a header alone names columns as well


class _Form:
    """How fields and records end."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._quote = options.quote.encode()
        separator, quote, escape = (
            re.escape(mark.encode()) for mark in (options.separator, options.quote, options.escape)
        )
        plain = rb"[^%b\r\n]" % separator
        if escape:
            plain = rb"(?:[^%b%b\r\n]|%b[^\r\n])" % (separator, escape, escape)
        field = plain + b"*"
        if quote and escape:
            inner = rb"(?:[^%b%b]|%b.|%b%b)*" % (quote, escape, escape, quote, quote)
            field = rb"(?:%b%b%b|(?!%b)%b*)" % (quote, inner, quote, quote, plain)
        elif quote:
            field = rb"(?:%b[^%b]*(?:%b%b[^%b]*)*%b|(?!%b)%b*)" % (
                quote,
                quote,
                quote,
                quote,
                quote,
                quote,
                quote,
                plain,
            )
        self._field = re.compile(rb"(%b)(%b|\r\n|\n|\r|\Z)" % (field, separator), re.DOTALL)

    def blocks(self, blocks: Iterator[bytes], max_record: int) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole records, and the line that each begins with. Raises: Unreadable."""
        rest, line = b"", 1
        for block in blocks:
            rest += block
            cut = self._cut(rest, line)
            if cut:
                yield line, rest[:cut]
                line, rest = line + rest.count(b"\n", 0, cut), rest[cut:]
            if len(rest) > max_record:
                raise beyond_row("record", max_record, line, rest)
        if rest:
            if not self._well_placed(rest):
                for _ in self._records(rest, line):
                    pass
            yield line, rest

    def _cut(self, data: bytes, line: int) -> int:
        """Where the last record ends that is whole, as far as ``data`` goes."""
        import numpy as np

        if (self._quote and self._quote in data) or self._options.escape:
            letters = np.frombuffer(data, np.uint8)
            quotes = np.flatnonzero(letters == self._quote[0]) if self._quote else np.empty(0, int)
            ends = np.flatnonzero(letters == ord("\n"))
            outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
            cut = int(outside[-1]) + 1 if len(outside) else 0
            if self._well_placed(data[:cut]):
                return cut
            cut = 0
            for end, _ in self._records(data, line, whole=False):
                cut = end
            return cut
        return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1

    def _well_placed(self, data: bytes) -> bool:
        """Whether each quote opens or closes a whole field, or is doubled in one: the plain case,
        found fast.
        """
        import numpy as np

        if self._options.escape:
            return False
        if not self._quote or self._quote not in data:
            return True
        letters = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(letters == self._quote[0])
        if len(quotes) % 2:
            return False
        edges = np.frombuffer(self._options.separator.encode() + b"\r\n" + self._quote, np.uint8)
        opens, closes = quotes[::2], quotes[1::2]
        before = letters[opens[opens > 0] - 1]
        after = letters[closes[closes + 1 < len(letters)] + 1]
        return bool(np.isin(before, edges).all() and np.isin(after, edges).all())

    def _records(
        self, data: bytes, line: int, *, whole: bool = True
    ) -> Iterator[tuple[int, list[bytes]]]:
        """The end and the fields of each record that is not an empty line.

        Args:
            whole: nothing follows after ``data``, so its last record is one, too.

        Raises: Unreadable: a field has a quote that it must not have, or that is never closed.
        """
        at, fields = 0, list[bytes]()
        while at < len(data) or fields:
            match = self._field.match(data, at)
            if match is None or (match.end() == len(data) and not whole):
                if not whole and (match is not None or self._may_go_on(data, at)):
                    return
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

    def _may_go_on(self, data: bytes, at: int) -> bool:
        """Whether the field at ``at`` is open at the end of ``data``."""
        escape = self._options.escape.encode()
        return self._field.match(data + self._quote, at) is not None or bool(
            escape and data.endswith(escape)
        )

    def header(self, block: bytes, line: int) -> tuple[list[str], int]:
        """The names of the columns, and where the first record begins. Raises: Unreadable."""
        end, fields = next(self._records(block, line), (len(block), []))
        names = [self._name(cell.decode()) for cell in fields]
        lower = [name.lower() for name in names]
        if twice := next((name for name in names if lower.count(name.lower()) > 1), None):
            raise Unreadable(
                f"the header names the column {twice!r} twice: {', '.join(names)}",
                line,
                block[:end],
            )
        return names, end

    def check_no_header(self, block: bytes, columns: Fields, line: int) -> None:
        """Raises: Unreadable: the first record is a header: it has all names, or one where no text
        can stand.
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

    def other_separator(self, field: str) -> str:
        """A hint at the option, if a ``field`` that stands alone looks like several; else empty."""
        separator = next(
            (
                candidate
                for candidate in ",;\t|"
                if candidate in field and candidate != self._options.separator
            ),
            "",
        )
        return (
            (
                f". If {json.dumps(separator)} separates the fields, say options: {{sep: "
                f"{json.dumps(separator)}}}"
            )
            if separator
            else ""
        )

    def _name(self, field: str) -> str:
        quote = self._options.quote
        if quote and len(field) > 1 and field.startswith(quote) and field.endswith(quote):
            field = field[1:-1].replace(quote * 2, quote)
        return field.strip()

    def table(self, block: bytes, names: list[str], line: int) -> Placed:
        """Raises: Unreadable: a record has too many fields, or too few."""
        import pyarrow as pa
        import pyarrow.csv as csv

        def line_of(row: int) -> int:
            begin = 0
            for number, (end, _) in enumerate(self._records(block, line)):
                if number == row:
                    blank = re.match(rb"[\r\n]*", block[begin:])
                    return line + block.count(b"\n", 0, begin + (blank.end() if blank else 0))
                begin = end
            return line

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
            for row, (_, fields) in enumerate(self._records(block, line)):
                if len(fields) != len(names):
                    many = f"{len(fields)} field{'s' if len(fields) != 1 else ''}"
                    cure = self.other_separator(fields[0].decode()) if len(fields) == 1 else ""
                    raise Unreadable(
                        (
                            f"a record has {many}, where there are {len(names)} columns: "
                            f"{', '.join(names)}{cure}"
                        ),
                        line_of(row),
                        self._options.separator.encode().join(fields),
                    ) from error
            raise Unreadable(f"the file cannot be read as CSV: {error}", line) from error
        return table.rename_columns(names), line_of
