"""Results of other groups in SQL: ``:results.group.key`` (pure).

A parameter of Spark has no dots in its name, so each marker gets a legal name. What stands in strings, quoted names and
comments is no marker, and no value is ever put into the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import count
from typing import NamedTuple

_NO_CODE = r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/"""
_NAME = r"[A-Za-z_]\w*"
_MARKERS = re.compile(
    rf"{_NO_CODE}|(?<![:\w]):results\.(?:(?P<group>{_NAME})\.(?P<key>{_NAME})|(?P<rest>[^\s,()]*))", re.DOTALL
)


class ResultMarker(NamedTuple):
    """A marker in a statement. ``group`` is empty where it is not of the form ``:results.group.key``."""

    text: str
    group: str
    key: str


def result_markers(sql: str) -> Iterator[ResultMarker]:
    """Every marker of a result in ``sql``, in order."""
    return (marker for found in _MARKERS.finditer(sql) if (marker := _marker(found)) is not None)


def with_plain_names(sql: str, taken: Collection[str]) -> tuple[str, dict[str, ResultMarker]]:
    """``sql`` with a plain name for each result, and the markers by these names; none of them is in ``taken``."""
    fresh = (name for n in count() if (name := f"result_{n}") not in taken)
    names: dict[ResultMarker, str] = {}

    def renamed(found: re.Match[str]) -> str:
        marker = _marker(found)
        if marker is None:
            return found[0]
        if marker not in names:
            names[marker] = next(fresh)
        return f":{names[marker]}"

    text = _MARKERS.sub(renamed, sql)
    return text, {name: marker for marker, name in names.items()}


def _marker(found: re.Match[str]) -> ResultMarker | None:
    return ResultMarker(found[0], found["group"] or "", found["key"] or "") if found[0][:1] == ":" else None
