"""Read JSON files into tables: an object on each line, or one document.

The first value that does not fit is reported with its line.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from unstuck.tasks.formats.file_content import Placed, Unreadable, check_utf8, in_utf8, lines_of
from unstuck.tasks.formats.json_records import json_decoder, table_of_rows
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_options import FileOptions

_ROWS = 50_000  # of a table
_TEXT = 16 * 1024 * 1024  # bytes of the text of a table
_OF_TEXT = ("date", "timestamp", "timestamp_ntz")


def read_json(
    stream: Any,
    options: FileOptions,
    columns: Fields,
    other: Literal["fail", "allow"],
    max_line: int,
    optional: Collection[str] = (),
) -> Iterator[Placed]:
    """Yield tables with ``columns``, in which dates and instants are still text.

    Args:
        max_line: maximum bytes of a line, in a file with an object on each line.
        optional: columns that an object may lack.

    Raises: Unreadable.
    """
    as_text, decoder = _as_text(columns), json_decoder()
    lines, records, size = list[tuple[int, bytes]](), list[Any](), 0
    for line, text in _documents(stream, options, max_line):
        value = _decoded(decoder, text, line)
        own = value if options.whole and isinstance(value, list) else [value]
        if None in own:
            raise Unreadable("an object is expected, and this is null", line, text)
        records += own
        lines += [(line, text)] * len(own)
        size += len(text)
        if (len(records) >= _ROWS or size >= _TEXT) and not options.whole:
            yield _table(as_text, records, lines, options, other, optional)
            lines, records, size = [], [], 0
    if records:
        yield _table(as_text, records, lines, options, other, optional)


def _table(
    columns: Fields,
    records: Sequence[Any],
    lines: Sequence[tuple[int, bytes]],
    options: FileOptions,
    other: Literal["fail", "allow"],
    optional: Collection[str],
) -> Placed:
    """Return ``records`` as a table; each has its line. Raises: Unreadable."""
    table, bad = table_of_rows(columns, dict(enumerate(records)), other, optional)
    if bad:
        number = min(bad)
        of_document = f"record {number + 1}: " if options.whole else ""
        raise Unreadable(f"{of_document}{bad[number]}", *lines[number])
    return table, [line for line, _ in lines].__getitem__


def _decoded(decoder: json.JSONDecoder, text: bytes, line: int) -> Any:
    """Decode a document that begins at ``line``. Raises: Unreadable."""
    try:
        return decoder.decode(text.decode())
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise Unreadable(
            f"it is no JSON: {error.msg}, at its character {error.colno}", at, text
        ) from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error) or type(error).__name__, line, text) from error


def _documents(stream: Any, options: FileOptions, max_line: int) -> Iterator[tuple[int, bytes]]:
    if options.whole:
        text = b"".join(in_utf8(stream, options.encoding))
        check_utf8(text, 1)
        if text.strip():
            yield 1, text
        return
    for first, lines in lines_of(stream, options.encoding, max_line):
        for number, line in enumerate(lines, first):
            if line.strip():
                yield number, line


def _as_text(fields: Fields) -> Fields:
    def kind(data_type: Any) -> Any:
        if isinstance(data_type, str):
            return "string" if data_type in _OF_TEXT else data_type
        if data_type["type"] == "struct":
            return {**data_type, "fields": _as_text(data_type["fields"])}
        parts = ("elementType", "keyType", "valueType")
        return {name: kind(part) if name in parts else part for name, part in data_type.items()}

    return [{**field, "type": kind(field["type"])} for field in fields]
