"""A part of a long list: one page of it, after a filter by name, or what stands before an entry of
a stream (pure).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of a list.

    Attributes:
        number: of the page, from 1 on; ``pages``: how many there are.
        found: items that fit the filter ``name``; ``total``: all.
    """

    items: Sequence[T]
    number: int
    pages: int
    found: int
    total: int
    name: str

    def showing(self, shown: Sequence[S]) -> Part[S]:
        """The same page, of which this is ``shown``."""
        return Part(shown, self.number, self.pages, self.found, self.total, self.name)

    def href(self, number: int) -> str:
        """The address of another page of the same list, beside this one."""
        return "?" + urlencode({**({"name": self.name} if self.name else {}), "page": number})


def is_entry(text: str) -> bool:
    """Whether this is the id of an entry of a stream, before which others may stand."""
    return re.fullmatch(r"(?!0+-0+$)\d{1,15}-\d{1,15}", text, re.ASCII) is not None


def part_of(
    items: Sequence[T],
    query: Mapping[str, str],
    most: int,
    name_of: Callable[[T], str] | None = None,
) -> Part[T]:
    """The page of ``items`` that ``query`` asks for: ``name`` is a part of the name, in any case;
    ``page`` its number.

    A number that is none, or is too high, is the nearest page. Without ``name_of`` there is no
    filter.
    """
    name, asked = query.get("name", "").strip()[:200] if name_of else "", query.get("page", "1")
    found = (
        [item for item in items if name.casefold() in name_of(item).casefold()]
        if name_of and name
        else items
    )
    pages = max(1, -(-len(found) // most))
    number = (
        min(max(1, int(asked)), pages)
        if asked.isascii() and asked.isdecimal() and len(asked) < 10
        else 1
    )
    return Part(
        found[(number - 1) * most : number * most], number, pages, len(found), len(items), name
    )
