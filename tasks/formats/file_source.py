"""The input of a decoder: the bytes of a file, and the columns that the spec declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unstuck.tasks.formats.bounds import Bound, Unpacked
from unstuck.tasks.formats.file_content import Unreadable, unpacked
from unstuck.tasks.formats.json_records import same_name
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.stream_options import FILE_COLUMN, FileOptions
from unstuck.tasks.spec.types import shown

_ALLOW_HINT = (
    ". With on_other_columns: allow, what is missing is null, and what is more is left out"
)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file that a format decodes.

    Attributes:
        reader: the stored bytes of the file.
        bound: maximum bytes of the file and of its rows.
        columns: columns of the stream.
        zone: time zone of local times that become instants.
        by_folder: columns whose values are in the names of folders.
    """

    reader: Any
    bound: Bound
    stream: StreamInput
    options: FileOptions
    columns: Fields
    zone: str
    by_folder: Mapping[str, Any]

    @property
    def text(self) -> Unpacked:
        """The bytes of a text file, decompressed by the ending of its name. Raises: Unreadable."""
        return Unpacked(unpacked(self.reader, self.bound.file), self.bound)

    @property
    def own_columns(self) -> Fields:
        """The columns, except that of the path of the file."""
        return without(self.columns, (FILE_COLUMN,))

    @property
    def columns_of_content(self) -> Fields:
        """The columns that are in the file, by position."""
        return without(self.own_columns, self.by_folder)

    def choose(self, have: list[str]) -> list[str]:
        """Return the names of the schema among ``have``, in the order of the file.

        Raises: Unreadable.
        """
        allow = self.stream.on_other_columns == "allow"
        return Chooser(self.columns, allow, {FILE_COLUMN, *self.by_folder}).choose(have)


def without(columns: Fields, names: Collection[str]) -> Fields:
    """Return ``columns`` without those of ``names``."""
    return [column for column in columns if column["name"] not in names]


def _check_distinct(have: Sequence[str]) -> None:
    """Check that names differ. Raises: Unreadable: two differ only in case."""
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
        in_file = {same_name(name): name for name in have}
        names = self._names
        chosen = [in_file[key] for key in in_file if key in names]
        lacking = names.keys() - in_file.keys() - {same_name(name) for name in self.optional}
        is_same = not lacking and len(chosen) == len(have)
        if is_same or (self.allow and (chosen or not lacking or not have)):
            return chosen
        raise self._mismatch(have, lacking)

    @property
    def _names(self) -> dict[str, str]:
        return {same_name(field["name"]): field["name"] for field in self.fields}

    def _mismatch(self, have: Sequence[str], lacking: Collection[str]) -> Unreadable:
        """Return the error for a file whose columns are not those of the schema."""
        missing = [name for key, name in self._names.items() if key in lacking]
        more = [name for name in have if same_name(name) not in self._names]
        parts = [f"lacks {_listed(missing)}"] if missing else []
        if more:
            parts.append(f"has {_listed(more)} as well")
        differs, hint = " and ".join(parts), _ALLOW_HINT
        if self.allow:
            differs, hint = "has none of them", ""
        return Unreadable(
            f"the file has the columns {_listed(have)}, and the schema has "
            f"{_listed([*self._names.values()])}: it {differs}. Mend the file or the schema{hint}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names)) or "none"
