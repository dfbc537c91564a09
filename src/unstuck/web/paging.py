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
class ListPage(Generic[T]):
    """One page of a list.

    Attributes:
        number: of the page, from 1 on; ``pages``: how many there are.
        matches: items that fit the filter ``name``; ``total``: all.
    """

    items: Sequence[T]
    number: int
    pages: int
    matches: int
    total: int
    name: str

    def showing(self, shown: Sequence[S]) -> ListPage[S]:
        """The same page, of which this is ``shown``."""
        return ListPage(shown, self.number, self.pages, self.matches, self.total, self.name)

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
) -> ListPage[T]:
    """The page of ``items`` that ``query`` asks for: ``name`` is a part of the name, in any case;
    ``page`` its number.

    A number that is none, or is too high, is the nearest page. Without ``name_of`` there is no
    filter.
    """
    name, page_text = query.get("name", "").strip()[:200] if name_of else "", query.get("page", "1")
    matches = (
        [item for item in items if name.casefold() in name_of(item).casefold()]
        if name_of and name
        else items
    )
    pages = max(1, -(-len(matches) // most))
    number = (
        min(max(1, int(page_text)), pages)
        if page_text.isascii() and page_text.isdecimal() and len(page_text) < 10
        else 1
    )
    return ListPage(
        matches[(number - 1) * most : number * most], number, pages, len(matches), len(items), name
    )
