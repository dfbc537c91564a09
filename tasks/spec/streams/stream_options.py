"""Parse the options of stream files, named as in Spark's reader. Others are refused."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace

from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.file_format import file_format
from unstuck.tasks.time_zone import checked_zone

# File ending → compression.
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
NOT_UNPACKED = (".snappy", ".deflate", ".lzo", ".zip", ".xz", ".br", ".7z")
_INSTEAD = {
    "path": "the place is stream:",
    "maxfilespertrigger": "say max_files_per_run: beside options:",
    "maxbytespertrigger": "say max_bytes_per_run: beside options:",
}
FILE_COLUMN = "_file"  # the path of the file, unless the files have such a column
_ESCAPES = {r"\t": "\t", r"\\": "\\", r"\0": "\0"}


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How the files of a stream are read.

    Attributes:
        header: a CSV file begins with the names of its columns; None: nobody said, and what looks
            like it is refused.
        escape: the character that takes the meaning from the next one; empty: a quote in a quoted
            field is doubled.
        null: the text without quotes that stands for no value.
        encoding: of text; empty for UTF-8.
        zone: of times without one that are to be instants; empty: that of the fleet.
        decimal: the mark before the fraction of a number. ``thousands``: the one between groups of
            three digits; empty: there is none.
        whole: a JSON file is one document: an object, or an array of them.
    """

    header: bool | None = None
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    null: str = ""
    encoding: str = ""
    zone: str = ""
    whole: bool = False
    decimal: str = "."
    thousands: str = ""


def file_options(format: str, options: Mapping[str, str]) -> FileOptions:
    """Parse ``options``.

    Raises: ValueError: an option or its value is not known.
    """
    normalized = _normalized(format, options)
    parsed = FileOptions(
        header=_flag(normalized, "header") if "header" in normalized else None,
        separator=_character(normalized, "sep", ","),
        quote=_character(normalized, "quote", '"', empty=True),
        escape=_character(normalized, "escape", "", empty=True),
        null=normalized.get("nullvalue", ""),
        encoding=_encoding(normalized.get("encoding", "")),
        zone=checked_zone(normalized["timezone"]) if "timezone" in normalized else "",
        whole=_flag(normalized, "multiline"),
        decimal=_mark(normalized, "decimal", "."),
        thousands=_mark(normalized, "thousands", ""),
    )
    if parsed.decimal == parsed.thousands:
        raise ValueError(f"the options decimal and thousands are both {parsed.decimal!r}")
    return replace(parsed, escape="") if parsed.escape == parsed.quote else parsed


def _normalized(format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` by the names that are read. Raises: ValueError: one is not known."""
    kind = file_format(format)
    normalized = {
        name.lower(): value
        for name, value in options.items()
        if (name.lower(), value.lower()) not in kind.fixed_options
    }
    allowed = {*kind.options}
    for unknown in sorted(normalized.keys() - allowed):
        choices = f"there are: {', '.join(sorted(allowed)) or 'none'}"
        raise ValueError(
            f"files of the format {format} have no option {unknown}; "
            f"{_INSTEAD.get(unknown, choices)}"
        )
    aliases = {"delimiter": "sep", "charset": "encoding"}
    named = {aliases[name]: value for name, value in normalized.items() if name in aliases}
    return {**named, **normalized}


def check_columns(format: str, columns: Fields) -> None:
    """Check that files of ``format`` can hold ``columns``. Raises: ValueError: they cannot."""
    types = {column["name"]: column["type"] for column in columns}
    types.pop(FILE_COLUMN, None)
    if not types:
        raise ValueError(
            f"the schema wants a column beside {FILE_COLUMN}, which is the path of the file"
        )
    file_format(format).check_columns(types)


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ValueError(f"the option {name} is {options[name]!r}, and must be true or false")
    return value == "true"


def _character(options: Mapping[str, str], name: str, default: str, *, empty: bool = False) -> str:
    value = options.get(name, default)
    value = _ESCAPES.get(value, value)
    if not (value == "" and empty) and (len(value) != 1 or not value.isascii() or value in "\r\n"):
        raise ValueError(f"the option {name} is {value!r}, and must be one character of ASCII")
    return value


def _mark(options: Mapping[str, str], name: str, default: str) -> str:
    """A mark within numbers, which may be a space of any kind."""
    value = options.get(name, default)
    if value != default and (len(value) != 1 or value.isalnum() or value in "+-\r\n"):
        raise ValueError(
            f"the option {name} is {value!r}, and must be one character that is no digit, letter "
            "or sign"
        )
    return value


def _encoding(name: str) -> str:
    try:
        "".encode(name or "utf-8")
    except LookupError:
        raise ValueError(f"the option encoding is {name!r}, which is no encoding of text") from None
    canonical = codecs.lookup(name or "utf-8").name
    return "" if canonical in ("utf-8", "utf-8-sig", "ascii") else canonical
