"""The pages of a long list: each item is on one of them, whatever the filter and however many fill
the last page.
"""

from __future__ import annotations

import pytest

from unstuck.web.paging import ListPage, is_entry, part_of


@pytest.mark.parametrize(("items", "pages"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_each_item_is_on_one_page_and_no_page_is_empty(items: int, pages: int) -> None:
    parts = [part_of(range(items), {"page": str(number)}, 10) for number in range(1, pages + 1)]
    assert [item for part in parts for item in part.items] == [*range(items)]
    assert {(part.pages, part.matches, part.total) for part in parts} == {(pages, items, items)}
    assert part_of(range(items), {"page": "999"}, 10) == parts[-1]


def test_a_filter_and_a_page_count_the_matching_items(names: list[str]) -> None:
    def page(number: int, name: str = "load") -> ListPage[str]:
        return part_of(names, {"name": name, "page": str(number)}, 10, str)

    assert page(2).items == [f"Load_{number}" for number in range(10, 15)]
    assert (page(2).number, page(2).pages, page(2).matches, page(2).total) == (2, 2, 15, 45)
    assert page(9) == page(2)
    assert page(2, "no such name").items == []


def test_the_address_of_another_page_keeps_the_filter(names: list[str]) -> None:
    assert part_of(names, {"name": "a&b=c ä"}, 10, str).href(3) == "?name=a%26b%3Dc+%C3%A4&page=3"
    assert part_of(names, {}, 10, str).href(3) == "?page=3"
    assert part_of(names, {"name": "x"}, 10).href(3) == "?page=3", "a list without a filter"


@pytest.fixture
def names() -> list[str]:
    return [f"{kind}_{number}" for number in range(15) for kind in ("Load", "clean", "send")]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        *((text, True) for text in ("1-0", "0-1", "1700000000000-12")),
        *(
            (text, False)
            for text in ("0-0", "00-00", "", "1", "-", "1-1-1", "1" * 16 + "-0", "\u0661-\u0660")
        ),
    ],
)
def test_only_ids_that_may_have_predecessors_are_valid(text: str, known: bool) -> None:
    assert is_entry(text) is known
