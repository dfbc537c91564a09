"""Markers of results in SQL: what is one, and that no value gets into the text."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from unstuck.tasks.spec.group import Step
from unstuck.tasks.spec.sql_tokens import (
    MAX_SQL,
    created_in,
    is_query,
    makes_known_names,
    needs_tables,
    not_closed,
    parameters_in,
    result_markers,
    several_statements,
    tables_in,
    with_plain_names,
)


def test_each_result_gets_one_plain_name_distinct_from_all_parameters() -> None:
    text, named = with_plain_names(
        "SELECT :results.a.x + :results.a.x, :results.b.y - :result_0", {"result_0"}
    )
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
def test_strings_names_comments_and_casts_contain_no_markers(sql: str) -> None:
    assert with_plain_names(sql, ()) == (sql, {})
    assert not list(result_markers(sql))


def test_an_incomplete_marker_is_also_found() -> None:
    assert [
        (one.text, one.group)
        for one in result_markers("SELECT f(:results.by-carrier.x), :results.")
    ] == [
        (":results.by-carrier.x", ""),
        (":results.", ""),
    ]


# -- the text around them


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM a", {"a"}),
        ("SELECT * FROM A JOIN `b` USING (id) LEFT JOIN c d ON d.id = a.id", {"a", "b", "c"}),
        ("SELECT * FROM a, b AS x, c WHERE a.id IN (SELECT id FROM d)", {"a", "b", "c", "d"}),
        ("WITH t AS (SELECT * FROM a), u AS (SELECT * FROM t) SELECT * FROM u", {"a"}),
        ("WITH t (x, y) AS (SELECT 1, 2) SELECT * FROM t JOIN a", {"a"}),
        ("FROM a SELECT id", {"a"}),
        ("SELECT extract(day FROM at), trim(BOTH 'x' FROM name) FROM a", {"a"}),
        ("SELECT x IS NOT DISTINCT FROM y FROM a", {"a"}),
        ("SELECT * FROM range(3) JOIN db.t JOIN delta.`/x` JOIN values (1), (2)", set()),
        ("SELECT 'FROM b' -- FROM c", set()),
        ("SELECT (SELECT max(id) FROM b) FROM a -- , c", {"a", "b"}),
        ("WITH RECURSIVE t(n) MAX RECURSION LEVEL 9 AS (SELECT n FROM t) SELECT * FROM t", set()),
        (
            "WITH t (SELECT * FROM a), u (x) (SELECT 1), `v` AS (SELECT 1) SELECT * FROM t, u, v",
            {"a"},
        ),
        ("SELECT 1 AS from, e.from, e.join AS join FROM edges e ORDER BY e.from", {"edges"}),
        ("SELECT to, from FROM edges ORDER BY from DESC", set()),
        ("SELECT CASE WHEN from IS NULL THEN 1 END FROM edges", set()),
        (
            "FROM a, LATERAL explode(x) JOIN LATERAL (SELECT * FROM b) LATERAL VIEW explode(y) c",
            {"a", "b"},
        ),
        (
            (
                "SELECT * FROM parquet.`/x` JOIN global_temp.v JOIN c.d.t JOIN IDENTIFIER(:name) "
                "JOIN STREAM s"
            ),
            set(),
        ),
    ],
)
def test_the_tables_read_by_a_statement_are_found(sql: str, tables: set[str]) -> None:
    assert tables_in(sql) == tables


@pytest.mark.parametrize(
    ("sql", "created"),
    [
        ("CREATE TABLE IF NOT EXISTS T AS SELECT 1", {"t"}),
        ("CREATE OR REPLACE TEMP VIEW `v` AS SELECT 1", {"v"}),
        ("SELECT 1", set()),
    ],
)
def test_the_tables_and_views_created_by_a_statement_are_found(sql: str, created: set[str]) -> None:
    assert created_in(sql) == created


@pytest.mark.parametrize(
    "sql", ["USE db", "SET CATALOG c", "CACHE TABLE t AS SELECT 1", "BEGIN SELECT 1; END", ""]
)
def test_table_names_are_known_only_after_statements_with_known_effects(sql: str) -> None:
    assert not makes_known_names(sql)
    assert all(
        map(
            makes_known_names,
            ("-- a\nSELECT 1", "(SELECT 1)", "CREATE VIEW v AS SELECT 1", "drop table t"),
        )
    )


@pytest.mark.parametrize(
    "sql", ["SHOW TABLES FROM a", "DELETE FROM a", "DESCRIBE a", "BEGIN SELECT * FROM a; END"]
)
def test_only_statements_that_read_rows_need_their_tables(sql: str) -> None:
    assert not needs_tables(sql)
    assert all(
        map(
            needs_tables,
            ("/**/ ( SELECT 1)", "WITH a AS (SELECT 1) FROM a", "INSERT INTO t SELECT * FROM a"),
        )
    )


def test_comments_start_and_end_only_in_code() -> None:
    assert parameters_in("SELECT '--' AS x, :r AS r") == {"r"}
    assert parameters_in("SELECT '/data/*' AS x, :r AS r, '*/tmp' AS y") == {"r"}
    assert parameters_in("SELECT 1 /* a /* :no */ :no */ + : /* blank */ `r`, x::int -- :no\n") == {
        "r"
    }
    assert parameters_in("SELECT $$ :no ' $$, $t$ :no $$ $t$, :r, r'\\', :s, file://a--b") == {
        "r",
        "s",
    }


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        *[
            (text, True)
            for text in (
                "/* -- */ ( SELECT 1)",
                "-- a\nWITH a AS (SELECT 1) FROM a",
                "values (1)",
                "TABLE t",
            )
        ],
        *[(text, True) for text in ("SELECT 1 AS insert, 2 delete FROM t", "SELECT 'insert into'")],
        *[
            (text, False)
            for text in (
                "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
                "FROM a INSERT OVERWRITE t SELECT 1",
            )
        ],
        *[
            (text, False)
            for text in ("'SELECT 1'", "CREATE VIEW v AS SELECT 1", "`select` 1", "", "-- SELECT 1")
        ],
    ],
)
def test_queries_are_distinguished_from_statements_that_write(sql: str, rows: bool) -> None:
    assert is_query(sql) is rows


@pytest.mark.variant
@pytest.mark.parametrize(
    "piece",
    [
        "/* ",
        "*/",
        "'",
        "''\\'",
        '"',
        "`",
        "$a$",
        "$a",
        "--",
        "r'",
        ":results.a.b ",
        "a://",
        "((",
        "/*+",
        "a",
        "\\",
    ],
)
def test_any_long_text_is_tokenized_in_linear_time(piece: str) -> None:
    """To go back in such a text takes minutes for some pieces and hours for others, beyond the
    limit of the test.
    """
    sql = f"SELECT 1 {piece * (100_000 // len(piece))}"
    assert several_statements(sql) is False
    assert not_closed(sql) is None or piece in ("/* ", "''\\'", "r'", "$a$", '"', "`", "'")
    assert with_plain_names(sql, parameters_in(sql))[1] or ":results" not in sql
    assert is_query(sql)


def test_a_statement_of_more_than_one_megabyte_is_refused() -> None:
    assert Step(sql="x" * MAX_SQL)
    with pytest.raises(ValidationError, match="at most 1048576 characters"):
        Step(sql="x" * (MAX_SQL + 1))
