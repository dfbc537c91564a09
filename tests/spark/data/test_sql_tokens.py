"""Our tokens of SQL against those of Spark's own lexer, for texts that are made of everything that
is hard to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pyspark
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JVMView, get_field
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from unstuck.tasks.spec.sql_tokens import not_closed, parameters_in, tables_in, tokens

pytestmark = pytest.mark.variant

Token = tuple[str, str]  # the kind, and the text
_KINDS = {
    "STRING_LITERAL": "string",
    "DOUBLEQUOTED_STRING": "string",
    "BACKQUOTED_IDENTIFIER": "name",
}

PIECES = [
    *(
        "'",
        '"',
        "`",
        "''",
        "\\",
        "\\'",
        "--",
        "/*",
        "*/",
        "/*+",
        "/*/",
        "$$",
        "$a$",
        "$A$",
        "$",
        "::",
        ":",
        ":r",
        ": s",
    ),
    *(
        "r'",
        'R"',
        "xr'",
        "r",
        "x",
        "é",
        "_1",
        "1",
        "1.5",
        "1e-5",
        "\n",
        "\r",
        "\\\n",
        " ",
        "\t",
        ";",
        ",",
        "(",
        ")",
    ),
    *(
        "*",
        "/",
        "-",
        "->",
        "|>",
        ">>",
        "?",
        "a://b--c?d",
        "s3://b--c",
        "select",
        "'--'",
        "'/*'",
        "'*/'",
        '"a""b"',
    ),
]
# 3.5 has neither casts by :: nor addresses as names, and refuses both.
NEW = () if not pyspark.__version__.startswith("3.") else ("::", "a://")
HEADS = (
    "SELECT ",
    "SET a = ",
    "RESET ",
    "ADD JAR ",
    "list files ",
    "/* a */ refresh ",
    "EXPLAIN SET a = ",
    "USE ",
    "BEGIN ",
)


@pytest.fixture(scope="module")
def jvm() -> Iterator[JVMView]:
    gateway = launch_gateway()
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@pytest.fixture(scope="module")
def sparks(jvm: JVMView) -> Callable[[str], list[Token] | None]:
    """The tokens of Spark; None for a text that its parser refuses, whatever stands around it."""
    parser = jvm.org.apache.spark.sql.catalyst.parser
    streams = jvm.org.antlr.v4.runtime.CharStreams

    def lexed(sql: str) -> list[Token] | None:
        lexer = parser.SqlBaseLexer(parser.UpperCaseCharStream(streams.fromString(sql)))
        lexer.removeErrorListeners()
        names = lexer.getVocabulary()
        found: list[Token] = []
        tag = ""
        every = lexer.getAllTokens()
        # By number: once a test of this process has had a Spark context, PySpark's own errors end
        # no iteration of Java.
        for token in map(every.get, range(every.size())):
            name, text = (
                names.getSymbolicName(token.getType()),
                sql[token.getStartIndex() : token.getStopIndex() + 1],
            )
            if name == "UNRECOGNIZED":
                return None
            if name == "BEGIN_DOLLAR_QUOTED_STRING":
                tag = text
            elif tag:
                tag += text
                if name == "END_DOLLAR_QUOTED_STRING":
                    found.append(("string", tag))
                    tag = ""
            elif not token.getChannel():
                found.append((_KINDS.get(name, "other"), text))
        return None if tag or get_field(lexer, "has_unclosed_bracketed_comment") else found

    lexed("$$a$$")
    return lexed


def joined(found: list[Token]) -> list[Token]:
    """Neighbours of one kind as one: Spark has more kinds of signs and words, and 3.5 takes 'it''s'
    for two strings.
    """
    whole: list[Token] = []
    for kind, text in found:
        if kind != "name" and whole and whole[-1][0] == kind:
            whole[-1] = (kind, whole[-1][1] + text)
        else:
            whole.append((kind, text))
    return whole


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("SELECT '--' AS x, :r AS r")
@example("SELECT '/data/*' AS x, :r AS r, '*/tmp' AS y")
@example("/*+ a */* /* x /*+ y */ :z -- \\\n :no")
def test_tokens_and_parameters_match_those_of_spark(
    sparks: Callable[[str], list[Token] | None], sql: str
) -> None:
    theirs = sparks(sql)
    assume(theirs is not None and not any(sign in sql for sign in NEW))
    assert theirs is not None
    ours = [
        (one.kind if one.kind in ("string", "name") else "other", one.text) for one in tokens(sql)
    ]
    assert joined(ours) == joined(theirs)
    asked = {
        name.strip("`") for colon, name in pairwise(text for _, text in theirs) if colon == ":"
    }
    assert {name for name in parameters_in(sql) if name in ("r", "s")} == {
        name for name in asked if name in ("r", "s")
    }


@settings(max_examples=400)
@given(st.sampled_from(HEADS), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
@example("SET a = ", "/data/* it's")
@example("ADD JAR ", "it's")
@example("ADD JAR ", "/data/*")
@example("SELECT ", "'it\\'s'")
def test_sql_accepted_by_spark_is_never_refused_as_unclosed(
    jvm: JVMView, head: str, rest: str
) -> None:
    if takes(jvm, head + rest):
        assert not_closed(head + rest) is None
    assert takes(jvm, "SET a = it's")  # and does not just fail


def takes(jvm: JVMView, sql: str) -> bool:
    try:
        jvm.org.apache.spark.sql.execution.SparkSqlParser().parsePlan(sql)
    except (
        Py4JJavaError,
        PySparkException,
        AssertionError,
    ):  # the last: PySpark wants a context for its own
        return False
    return True


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("SELECT 1 /* /* a */")
@example("SELECT $a$ b $b$")
def test_sql_refused_as_unclosed_is_also_unclosed_for_spark(
    sparks: Callable[[str], list[Token] | None], sql: str
) -> None:
    if any(token.kind == "open" for token in tokens(sql)) and not any(sign in sql for sign in NEW):
        assert sparks(sql) is None


# {q} is a query, {r} what follows FROM, {e} an expression.
QUERIES = (
    "SELECT {e} FROM {r}",
    "FROM {r} SELECT {e}",
    "({q}) UNION ALL ({q})",
    "SELECT {e}, {e} FROM {r} ORDER BY from DESC",
    "SELECT {e} FROM {r} WHERE from IN (1) GROUP BY from HAVING from > 1",
    "SELECT {e} FROM {r} WINDOW w AS ()",
    "WITH c AS ({q}), d (x) AS ({q}) SELECT {e} FROM {r}",
    "WITH c ({q}), `d` ({q}) {q}",
    "FROM {r} |> JOIN b |> LIMIT 1",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n FROM c) {q}",
    "WITH RECURSIVE c(n) MAX RECURSION LEVEL 9 AS ({q}) {q}",
)
RELATIONS = (
    *("a", "B AS c", "`d` e", "a, b x, c", "db.t", "({q}) s, b", "range(3) r, a", "VALUES (1) v"),
    *("delta.`/x`, a", "STREAM s", "a JOIN b USING (x)", "a LEFT JOIN ({q}) s ON a.x = s.x"),
    *("a LATERAL VIEW explode(y) l AS z", "a, LATERAL ({q})", "a CROSS JOIN LATERAL f(x)", "from"),
    *("a TABLESAMPLE (9 PERCENT)", "a NATURAL JOIN b", "a PIVOT (sum(x) FOR y IN (1))"),
    *("a VERSION AS OF 3", "IDENTIFIER('a') i", "a FULL OUTER JOIN b ON from = to", "a b (x, y)"),
)
EXPRESSIONS = (
    *("x", "a.from", "from", "from b", "extract(day FROM x)", "trim(BOTH 'c' FROM x)", "({q})"),
    *("x AS from", "x IS NOT DISTINCT FROM to", "CASE WHEN from IS NULL THEN from ELSE from END"),
    *(
        "x IN ({q})",
        "EXISTS ({q})",
        "f(x), c",
        "f(x), c AS d",
        "from BETWEEN from AND to",
        "1 join",
    ),
    *(
        "/*+ a */ 'FROM z'",
        "x -> from",
        "a.join",
        "substring(x FROM 2)",
        "-from",
        "from[1]",
        "f(from)",
    ),
)


@st.composite
def statements(draw: st.DrawFn, left: int = 3) -> str:
    """A query, made of all places in which FROM or JOIN may stand."""
    text = draw(st.sampled_from(QUERIES)) if left else "SELECT 1 AS x"
    parts = {"r": st.sampled_from(RELATIONS), "e": st.sampled_from(EXPRESSIONS)}
    while (hole := re.search(r"\{([qre])\}", text)) is not None:
        part = parts[hole[1]] if hole[1] in parts else statements(max(left - 1, 0))
        text = text[: hole.start()] + draw(part) + text[hole.end() :]
    return text


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(statements())
@example("SELECT to, from FROM edges ORDER BY from DESC")
def test_every_listed_table_is_also_looked_up_by_spark(jvm: JVMView, sql: str) -> None:
    assume(takes(jvm, sql))
    plan = jvm.org.apache.spark.sql.execution.SparkSqlParser().parsePlan(sql).toString()
    # The names after WITH are read, too, and are none of those of the catalog.
    assert tables_in(sql) <= {
        name.lower() for name in re.findall(r"UnresolvedRelation \[([^\],]*)\]", plan)
    }
