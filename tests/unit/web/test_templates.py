"""Rules that hold for all templates of the page."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest

from unstuck.web.rendering import HERE, with_clock_times

TEMPLATES = {path.name: path.read_text() for path in (HERE / "templates").iterdir()}


def test_tables_become_labeled_cards_in_a_narrow_window() -> None:
    cells = {
        name: [
            cell
            for cell in re.findall(r"<td[^>]*>", re.sub(r"{%.*?%}", "", text))
            if "data-label=" not in cell and "colspan=" not in cell
        ]
        for name, text in TEMPLATES.items()
    }
    empty = cells.pop("jobs.html")
    assert empty == ["<td>", "<td>"], "empty cells of several runs in one line"
    assert {name: left for name, left in cells.items() if left} == {}
    tables = [table for text in TEMPLATES.values() for table in re.findall(r"<table[^>]*>", text)]
    assert [table for table in tables if 'class="cards' not in table] == []


def test_only_the_refresh_of_the_whole_page_changes_its_title() -> None:
    parts = [tag for text in TEMPLATES.values() for tag in re.findall(r"<[^>]*hx-get=.*>", text)]
    assert len(parts) == 3
    assert [tag for tag in parts if "ignoreTitle:true" not in tag] == [
        tag for tag in parts if 'hx-get="{{ url }}"' in tag
    ]


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("next at 2026-11-29T23:30:00Z.", "next at 2026-11-30 00:30:00+01:00."),
        ("2026-07-01T00:00:00.250Z; x", "2026-07-01 02:00:00+02:00; x"),
        ("`unstuck schedule skip x 2026-11-29T23:30:00Z`", None),
        ("the key night@2026-11-29T23:30:00Z", None),
        ("run 2026-11-29T23:30:00Zx, 2026-13-01", None),
    ],
)
def test_times_in_sentences_use_the_time_format_of_the_page(
    sentence: str, shown: str | None
) -> None:
    assert with_clock_times(sentence, ZoneInfo("Europe/Berlin")) == (shown or sentence)


def test_text_that_only_resembles_a_time_stays_unchanged() -> None:
    assert with_clock_times("2026-99-29T23:30:00Z") == "2026-99-29T23:30:00Z"
