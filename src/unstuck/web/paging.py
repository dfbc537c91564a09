"""One page of a long list, after filters (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
S = TypeVar("S")
MAX_FILTER = 200  # characters


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list.

    Attributes:
        number: of the page, counted from 1.
        pages: the number of pages.
        matches: the number of items that match the filters.
        total: the number of all items.
        filters: the parameters of the query that other pages of the list keep.
    """

    items: Sequence[T]
    number: int
    pages: int
    matches: int
    total: int
    filters: Mapping[str, str]

    @property
    def name(self) -> str:
        """The filter by name; empty for none."""
        return self.filters.get("name", "")

    def showing(self, shown: Sequence[S]) -> ListPage[S]:
        """Return the same page with ``shown`` for its items."""
        page: ListPage[Any] = self
        return replace(page, items=shown)

    def href(self, number: int) -> str:
        """Return the relative address of another page of the list."""
        return "?" + urlencode({**self.filters, "page": number})


def is_entry(text: str) -> bool:
    """Return whether ``text`` is the id of a stream entry that others may precede."""
    return re.fullmatch(r"(?!0+-0+$)\d{1,15}-\d{1,15}", text, re.ASCII) is not None


def filter_of(query: Mapping[str, str], name: str) -> str:
    """Return a filter of the query."""
    return query.get(name, "").strip()[:MAX_FILTER]


def part_of(
    items: Sequence[T],
    query: Mapping[str, str],
    most: int,
    name_of: Callable[[T], str] | None = None,
) -> ListPage[T]:
    """Return the requested page of ``items``.

    Args:
        query: ``name`` is a part of the name, in any case; ``page`` is as in `page_of`.
        most: items of one page.
        name_of: returns the name of an item. Without it there is no filter.
    """
    if name_of is None or not (name := filter_of(query, "name")):
        return page_of(items, len(items), {}, query, most)
    matches = [item for item in items if name.casefold() in name_of(item).casefold()]
    return page_of(matches, len(items), {"name": name}, query, most)


def page_of(
    matches: Sequence[T],
    total: int,
    filters: Mapping[str, str],
    query: Mapping[str, str],
    most: int,
) -> ListPage[T]:
    """Return the page ``query["page"]`` of ``matches``; the nearest one if there is no such page.

    Args:
        total: the number of items before the filters.
        filters: non-empty parameters of the query; see `ListPage`.
        most: items of one page.
    """
    text, pages = query.get("page", "1"), max(1, -(-len(matches) // most))
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    number = min(max(1, int(text)), pages) if is_number else 1
    shown = matches[(number - 1) * most : number * most]
    return ListPage(shown, number, pages, len(matches), total, filters)
