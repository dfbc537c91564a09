"""Define a format of files that arrive, and find the formats: each is one module of a folder."""
# A format also decodes files, so it is above this package and is imported by name. Its module
# imports the decoder when a file is read: a coordinator only checks specs.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

FOLDER = "unstuck.tasks.formats.kinds"


class FileFormat(Protocol):
    """A format of files that arrive. Its module has the name of the format, and one as ``FORMAT``.

    Attributes:
        endings: endings of the names of its files; one of a compression may follow.
        options: names of the options that it has, in small letters.
        fixed_options: options of Spark's reader with the one value that is accepted, which holds
            anyway.
        values_are_text: a value of another type than text is still text in the decoded tables.
        place: the word for the place of an error in a file, such as "line".
        has_folder_values: a column may have the value that a folder names, such as ``day=1``.
    """

    endings: Collection[str]
    options: Collection[str] = ()
    fixed_options: Collection[tuple[str, str]] = ()
    values_are_text: bool = False
    place: str = "line"
    has_folder_values: bool = True

    def check_columns(self, types: Mapping[str, Any]) -> None:
        """Check that files can hold columns of these types, in Spark's JSON. Raises: ValueError."""
        return

    def tables(self, source: Any) -> Iterator[Any]:
        """Decode a `FileSource`: yield Arrow tables, each with the line of its rows.

        Raises: Unreadable.
        """
        ...


@cache
def file_formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(sorted(module.name for module in iter_modules(import_module(FOLDER).__path__)))


@cache
def file_format(name: str) -> FileFormat:
    """Return the format ``name``, one of `file_formats`."""
    kind: FileFormat = import_module(f"{FOLDER}.{name}").FORMAT
    return kind
