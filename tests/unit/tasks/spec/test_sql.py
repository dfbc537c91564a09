"""Markers of results in SQL: what is one, and that no value gets into the text."""

from __future__ import annotations

import pytest

from unstuck.tasks.spec.sql import result_markers, with_plain_names


def test_each_result_gets_one_plain_name_that_no_parameter_has() -> None:
    text, named = with_plain_names("SELECT :results.a.x + :results.a.x, :results.b.y - :result_0", {"result_0"})
    assert text == "SELECT :result_1 + :result_1, :result_2 - :result_0"
    assert {name: (one.group, one.key) for name, one in named.items()} == {
        "result_1": ("a", "x"),
        "result_2": ("b", "y"),
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ':results.a.x'",
        "SELECT 'it''s \\' :results.a.x'",
        'SELECT ":results.a.x"',
        "SELECT r'\\', ':results.a.x'",
        "SELECT `:results.a.x`",
        "SELECT 1 -- :results.a.x",
        "SELECT 1 /* :results.a.x */",
        "SELECT x::results.a.x",
        "SELECT :results",
        "SELECT results.a.x",
    ],
)
def test_strings_names_comments_and_casts_hold_no_marker(sql: str) -> None:
    assert with_plain_names(sql, ()) == (sql, {})
    assert not list(result_markers(sql))


def test_a_marker_that_is_not_whole_is_found_too() -> None:
    assert [(one.text, one.group) for one in result_markers("SELECT f(:results.by-carrier.x), :results.")] == [
        (":results.by-carrier.x", ""),
        (":results.", ""),
    ]
