"""Decode a file that has arrived: columns by name, values without loss, errors with their place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.formats.arrived import ArrivedFile, shown_path
from unstuck.tasks.formats.bounds import Bound, Unpacked
from unstuck.tasks.formats.columnar_files import read_orc, read_parquet_file
from unstuck.tasks.formats.csv_files import read_csv
from unstuck.tasks.formats.file_content import Placed, Unreadable, lines_of, opened, unpacked
from unstuck.tasks.formats.folder_values import folder_values, with_folder_values
from unstuck.tasks.formats.json_files import read_json
from unstuck.tasks.formats.json_records import same_name
from unstuck.tasks.frames.casts import cast_of_file
from unstuck.tasks.frames.text_values import NumberForm, parser
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.streams.stream_options import FILE_COLUMN, FileOptions, file_options
from unstuck.tasks.spec.types import shown

_ALLOW_HINT = (
    ". With on_other_columns: allow, what is missing is null, and what is more is left out"
)


def decoded(file: ArrivedFile, stream: StreamInput, zone: str, max_bytes: int) -> Iterator[Any]:
    """The rows of one file with the columns of the stream, a part at a time.

    Args:
        zone: of times without one that are to be instants, unless an option says another.
        max_bytes: of the file, unpacked and decoded.

    Raises:
        Gone: the file is not there any more, or has changed.
        Unreadable: it cannot be read as the spec says.
        OSError: the store failed.
    """
    columns = declared(stream.columns)
    options = file_options(stream.format, stream.options)
    zone = options.zone or zone
    numbers = NumberForm(options.decimal, options.thousands)
    parse = parser(zone, numbers) if stream.format in ("csv", "json") else None
    with opened(file) as reader:
        own = [column for column in columns if column["name"] != FILE_COLUMN]
        by_folder = folder_values(file.path, own, parser(zone)) if stream.format != "text" else {}
        word = "row" if stream.format in ("parquet", "orc") else "line"
        bound = Bound(file, max_bytes, stream.max_row_bytes)
        for table, line_of in _tables(reader, bound, stream, options, columns, zone, by_folder):
            bound.check_table(table, line_of)
            wrong = list[int]()

            def place(row: int, line_of: Any = line_of, wrong: list[int] = wrong) -> str:
                wrong.append(line_of(row))
                return f"{word} {wrong[0]:,}"

            try:
                rows = cast_of_file(_matched(table, file, columns), columns, place, parse)
                yield with_folder_values(rows, by_folder, place)
            except OutputInvalid as error:
                raise Unreadable(str(error), wrong[0] if wrong else 0) from error


def _tables(
    reader: Any,
    bound: Bound,
    stream: StreamInput,
    options: FileOptions,
    columns: Fields,
    zone: str,
    by_folder: Collection[str],
) -> Iterator[Placed]:
    chooser = Chooser(columns, stream.on_other_columns == "allow", {FILE_COLUMN, *by_folder})
    if stream.format == "parquet":
        return read_parquet_file(reader, chooser.choose, bound)
    if stream.format == "orc":
        instants = {column["name"].lower() for column in columns if column["type"] == "timestamp"}
        return read_orc(reader, chooser.choose, bound, instants, zone)
    text = Unpacked(unpacked(reader, bound.file), bound)
    own = [column for column in columns if column["name"] != FILE_COLUMN]
    most = stream.max_row_bytes
    if stream.format == "csv":
        by_position = [column for column in own if column["name"] not in by_folder]
        return _of_names(read_csv(text, options, by_position, most), chooser.choose)
    if stream.format == "json":
        return read_json(text, options, own, stream.on_other_columns, most, by_folder)
    return _lines(text, options, own[0]["name"], most)


def _of_names(
    tables: Iterator[Placed], choose: Callable[[list[str]], list[str]]
) -> Iterator[Placed]:
    for table, line_of in tables:
        yield table.select(choose(table.column_names)), line_of


def _lines(text: Any, options: FileOptions, name: str, max_line: int) -> Iterator[Placed]:
    import pyarrow as pa

    for first, lines in lines_of(text, options.encoding, max_line):
        yield pa.table({name: pa.array(lines, pa.binary()).cast(pa.string())}), first.__add__


def _check_distinct(have: Sequence[str]) -> None:
    """Raises: Unreadable: two names are the same for people."""
    last = {same_name(name): name for name in have}
    if twice := [name for name in have if last[same_name(name)] != name]:
        raise Unreadable(
            f"the file has the columns {_listed([*twice, last[same_name(twice[0])]])}, "
            "which are one name"
        )


@dataclass(frozen=True, slots=True)
class Chooser:
    """Selects the names of the schema from the names in a file.

    Attributes:
        fields: the columns of the schema.
        allow: a file may lack columns or have others, but not all of them.
        optional: columns that a file need not have.
    """

    fields: Fields
    allow: bool
    optional: Collection[str]

    def choose(self, have: list[str]) -> list[str]:
        """Return the names of the schema among ``have``, in the order of the file.

        Raises: Unreadable.
        """
        _check_distinct(have)
        names = {same_name(field["name"]): field["name"] for field in self.fields}
        in_file = {same_name(name): name for name in have}
        chosen = [name for key, name in in_file.items() if key in names]
        lacking = names.keys() - in_file.keys() - self._optional
        if self.allow and (chosen or not lacking or not have):
            return chosen
        if lacking or len(chosen) < len(have):
            missing = [name for key, name in names.items() if key in lacking]
            more = [name for key, name in in_file.items() if key not in names]
            raise self._mismatch(have, missing, more)
        return chosen

    @property
    def _optional(self) -> set[str]:
        return {same_name(name) for name in self.optional}

    def _mismatch(
        self, have: Sequence[str], missing: Sequence[str], more: Sequence[str]
    ) -> Unreadable:
        """Return the error for a file whose columns are not those of the schema."""
        parts = [f"lacks {_listed(missing)}"] if missing else []
        if more:
            parts.append(f"has {_listed(more)} as well")
        differs, hint = " and ".join(parts), _ALLOW_HINT
        if self.allow:
            differs, hint = "has none of them", ""
        names = _listed([field["name"] for field in self.fields])
        return Unreadable(
            f"the file has the columns {_listed(have)}, and the schema has {names}: it {differs}. "
            f"Mend the file or the schema{hint}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names)) or "none"


def _matched(table: Any, file: ArrivedFile, fields: Fields) -> Any:
    """Return ``table`` with the columns of ``fields``, in their order.

    Columns missing from the table get type ``null``.
    """
    import pyarrow as pa

    have = {same_name(name): table.column(number) for number, name in enumerate(table.column_names)}
    columns = []
    for field in fields:
        column = have.get(same_name(field["name"]))
        if column is None and field["name"] == FILE_COLUMN:
            path = pa.scalar(shown_path(file.path))
            column = pa.repeat(path, len(table))
        columns.append(pa.nulls(len(table)) if column is None else column)
    return pa.table(columns, names=[field["name"] for field in fields])
