"""Split Spark SQL into tokens, and find parameters, results and the end of a statement (pure).

What stands in strings, quoted names and comments is no code, and no value is ever put into the
text. The rules are those of Spark's own lexer (``SqlBaseLexer.g4``), with which a test compares
them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import count, filterfalse, pairwise
from typing import Literal, NamedTuple

MAX_SQL = 1024 * 1024  # characters of a statement
# Statements: thousands of steps may have the same one, and several checks look at each.
MAX_CACHED = 64

# No part of it goes back over what it has read, so a text of any kind is read in time that grows
# with its length alone.
_TOKEN = re.compile(
    r"""(?P<blank>\s+|--(?:\\\n|[^\r\n])*+\r?\n?)
      | (?P<comment>/\*(?!\+))
      | (?P<string>[rR]'[^']*+'|[rR]"[^"]*+"|'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+")
      | (?P<dollar>\$[A-Za-z]*+\$)
      | (?P<name>`(?:[^`]++|``)*+`)
      | (?P<open>(?:[rR]?['"]|`).*+)
      | (?P<word>[0-9]++[eE][+-][0-9]++(?:[bB]?[dD]|[fF])?|[^\W\d_]++://[\w/\-.?=&\#%]+|\w+)
      | /\*\+|\*/|::|.""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT_ENDS = re.compile(r"/\*(?!\+)|\*/")  # a hint in a comment opens no other one
_NAME = r"[A-Za-z_]\w*"
_RESULT = re.compile(rf":results\.(?:(?P<group>{_NAME})\.(?P<key>{_NAME})|[^\s,()]*)")
_OF_ANY_TEXT = ("set", "reset", "add", "list", "refresh", "explain")
# Functions with FROM in their arguments.
_TAKE_FROM = ("extract", "trim", "substring", "substr", "overlay", "position")
# Next to one of these, FROM and JOIN are names of columns: SELECT from, to FROM edges ORDER BY from
# DESC
_BEFORE_COLUMNS = (
    *(
        ",",
        "=",
        "<",
        ">",
        "+",
        "-",
        "/",
        "%",
        "|",
        "&",
        "[",
        "select",
        "by",
        "where",
        "and",
        "or",
        "not",
    ),
    *("case", "when", "then", "else", "on", "having", "between", "in", "like"),
)
_AFTER_COLUMNS = (
    *(
        "and",
        "as",
        "asc",
        "between",
        "desc",
        "else",
        "end",
        "except",
        "from",
        "group",
        "having",
        "ilike",
    ),
    *(
        "in",
        "intersect",
        "is",
        "join",
        "like",
        "limit",
        "minus",
        "not",
        "nulls",
        "on",
        "or",
        "order",
    ),
    *("regexp", "rlike", "select", "then", "union", "using", "when", "where", "window", "with"),
)
# After FROM, these are not the name of a table.
_NO_TABLES = ("lateral", "stream", "values")
# `created_in` knows all names that these make. Others, such as USE or a script, may make more
# readable.
_PLAIN_STATEMENTS = (
    *("(", "select", "with", "from", "values", "table"),
    *("create", "insert", "drop", "truncate", "analyze"),
)
# In these statements, the tables after FROM must exist.
_OF_ROWS = ("(", "select", "with", "from", "create", "insert")
_AFTER_TABLES = (
    "where",
    "join",
    "on",
    "group",
    "order",
    "having",
    "limit",
    "union",
    "cross",
    "inner",
    "left",
    "right",
)
_WRITES = (("insert", "into"), ("insert", "overwrite"), ("delete", "from"), ("merge", "into"))


class SqlToken(NamedTuple):
    """A token that is code. ``string`` and ``name`` have their quotes; any sign is a ``symbol``.

    What is opened and not closed, be it a comment, is ``open`` and goes on to the end of the text.
    """

    kind: Literal["string", "name", "word", "symbol", "open"]
    text: str
    start: int


class ResultMarker(NamedTuple):
    """A marker in a statement.

    ``group`` is empty where it is not of the form ``:results.group.key``.
    """

    text: str
    group: str
    key: str


def tokens(sql: str) -> Iterator[SqlToken]:
    """Yield the tokens of ``sql``, without whitespace and comments."""
    at = 0
    while lexeme := _TOKEN.match(sql, at):
        start, at = at, lexeme.end()
        match lexeme.lastgroup:
            case "comment" | "dollar" as kind:
                at = (
                    _end_of_comment(sql, at)
                    if kind == "comment"
                    else sql.find(lexeme[0], at) + len(lexeme[0])
                )
                if at < lexeme.end():
                    yield SqlToken("open", sql[start:], start)
                    return
                if kind == "dollar":
                    yield SqlToken("string", sql[start:at], start)
            case "string" | "name" | "word" | "open" | None as kind:
                yield SqlToken(kind or "symbol", lexeme[0], start)


def _end_of_comment(sql: str, at: int) -> int:
    """Where the comment ends that was opened before ``at``; 0 if nowhere.

    Comments may hold comments.
    """
    depth = 1
    for delimiter in _COMMENT_ENDS.finditer(sql, at):
        depth += 1 if delimiter[0] == "/*" else -1
        if not depth:
            return delimiter.end()
    return 0


def parameters_in(sql: str) -> set[str]:
    """Return names that may be parameters ``:name`` of ``sql``.

    A field of a variant (``v:name``) looks the same.

    """
    return {
        name.text.strip("`") for colon, name in pairwise(tokens(sql)) if _is_marker(colon, name)
    }


def _is_marker(colon: SqlToken, name: SqlToken) -> bool:
    return colon.text == ":" and name.kind in ("word", "name")


def markers_in(sql: str) -> set[str]:
    """Return the names of ``:name`` in ``sql``, without fields of a variant (``v:name``)."""
    names, before = set(), SqlToken("symbol", "", 0)
    for colon, name in pairwise(tokens(sql)):
        is_free = before.kind == "symbol" or before.start + len(before.text) < colon.start
        if is_free and _is_marker(colon, name):
            names.add(name.text.strip("`"))
        before = colon
    return names


def first_word(sql: str) -> str:
    """The first word of ``sql``, in lower case; empty if it does not begin with one."""
    first = next(tokens(sql), None)
    return first.text.lower() if first is not None and first.kind == "word" else ""


@lru_cache(MAX_CACHED)
def tables_in(sql: str) -> frozenset[str]:
    """Return the unqualified names of tables and views that ``sql`` reads, in lower case.

    Names that ``WITH`` defines are left out. A name that only Spark's own parser can tell from a
    column may be missing: all names are, where FROM or JOIN is the name of a column, too.
    """
    code = _code(sql)
    words = [token.text.lower() for token in code]
    places = [*_froms(words)]
    if any(_is_column(words, at) for at in places):
        return frozenset()
    names = (_tables_at(code, at + 1) for at in places)
    return frozenset(set().union(*names) - _defined_in(words))


def _code(sql: str) -> list[SqlToken]:
    return [token for token in tokens(sql) if token.kind in ("word", "name", "symbol")]


def _froms(words: list[str]) -> Iterator[int]:
    """Yield the positions of FROM and JOIN, other than the FROM of a function."""
    opened = [""]  # the word before each open parenthesis
    for at, word in enumerate(words):
        if word == "(":
            opened.append("".join(words[max(at - 1, 0) : at]))
        elif word == ")":
            opened = opened[:-1] or [""]
        elif word in ("from", "join") and not _is_other_from(words, at, opened[-1]):
            yield at


def _is_other_from(words: list[str], at: int, opened: str) -> bool:
    """Return whether a FROM is a field, an alias, or the FROM of a function such as ``extract``."""
    before = words[at - 1] if at else ""
    return before in (".", "as", "distinct") or opened in _TAKE_FROM


def _is_column(words: list[str], at: int) -> bool:
    before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ")"
    is_sign = after != "(" and re.fullmatch(r"\W", after) is not None
    return before in _BEFORE_COLUMNS or after in _AFTER_COLUMNS or is_sign


def _defined_in(words: list[str]) -> set[str]:
    """Return the names that ``WITH`` defines, including later definitions after a comma."""
    defined = set()
    for i, word in enumerate(words[:-1]):
        is_first = word == "with" or words[max(i - 1, 0) : i + 1] == ["with", "recursive"]
        is_later = words[max(i - 1, 0) : i + 1] == [")", ","] and _opens_definition(
            words[i + 2 : i + 4]
        )
        if is_first or is_later:
            defined.add(words[i + 1].strip("`"))
    return defined


def _opens_definition(words: list[str]) -> bool:
    """Whether ``words`` follow a name that WITH defines.

    AS may be left out, and a recursive one may have a bound.
    """
    return words == ["as", "("] or words == ["max", "recursion"] or words[:1] == ["("]


def makes_known_names(sql: str) -> bool:
    """Whether `created_in` knows every name that later steps can read because of ``sql``."""
    sets_conf = _first(sql) == "set" and "catalog" not in sql.lower()
    return sets_conf or _first(sql) in _PLAIN_STATEMENTS


def needs_tables(sql: str) -> bool:
    """Return whether Spark refuses ``sql`` if one of `tables_in` is missing.

    That holds for a query, and for a statement that writes the rows of one.
    """
    return _first(sql) in _OF_ROWS


def _first(sql: str) -> str:
    first = next(tokens(sql), None)
    return "" if first is None else first.text.lower()


@lru_cache(MAX_CACHED)
def created_in(sql: str) -> frozenset[str]:
    """Return the table or view that ``sql`` creates, in lower case; empty if it creates none."""
    words = [token.text.lower() for token in _code(sql)]
    if words[:1] != ["create"]:
        return frozenset()
    kind = next((i for i, word in enumerate(words) if word in ("table", "view")), len(words))
    rest = [word for word in words[kind + 1 :] if word not in ("if", "not", "exists")]
    return frozenset(word.strip("`") for word in rest[:1])


def _tables_at(code: list[SqlToken], at: int) -> set[str]:
    """The names of the tables that are listed from the token ``at`` on."""
    tables: set[str] = set()
    end = SqlToken("open", "", 0)
    rest = deque([*code[at:], end, end, end])
    while rest[0].kind in ("word", "name"):
        name = rest.popleft().text.lower()
        is_table = rest[0].text not in (".", "(") and not name[0].isdigit()
        if is_table and name not in _NO_TABLES:
            tables.add(name.strip("`"))
        if rest[0].text.lower() == "as":
            rest.popleft()
        if rest[0].kind in ("word", "name") and rest[0].text.lower() not in _AFTER_TABLES:
            rest.popleft()  # an alias
        if rest.popleft().text != ",":
            break
    return tables


def is_query(sql: str) -> bool:
    """Return whether a statement returns rows and writes none."""
    code = [token.text.lower() for token in tokens(sql) if token.kind in ("word", "symbol")]
    first = next((word for word in code if word != "("), "")
    may_write = first in ("with", "from")
    return first in ("select", "values", "table") or (
        may_write and not any(two in _WRITES for two in pairwise(code))
    )


def several_statements(sql: str) -> bool:
    """Return whether ``sql`` is certainly more than one statement.

    False where only Spark's parser can decide.
    """
    code = [token.text.lower() for token in tokens(sql)]
    if ";" not in code or _only_spark_can_tell(code):
        return False
    end = code.index(";")
    return end > 0 and any(text != ";" for text in code[end:])


def not_closed(sql: str) -> SqlToken | None:
    """Return the string, name or comment that is open at the end of ``sql`` if Spark refuses it."""
    every = list(tokens(sql))
    if not every or every[-1].kind != "open":
        return None
    last = every.pop()
    code = [token.text.lower() for token in every]
    allowed = code[:1] == ["set"] if last.text.startswith("/*") else _only_spark_can_tell(code)
    return None if allowed else last


def _only_spark_can_tell(code: list[str]) -> bool:
    """Return whether a statement takes any text, or is a script with statements of its own."""
    return "begin" in code or (code[:1] or [""])[0] in _OF_ANY_TEXT


def result_markers(sql: str) -> Iterator[ResultMarker]:
    """Return the result markers in ``sql``, in order."""
    return (
        ResultMarker(match[0], match["group"] or "", match["key"] or "") for match in _results(sql)
    )


def with_plain_names(sql: str, taken: Collection[str]) -> tuple[str, dict[str, ResultMarker]]:
    """Replace each result in ``sql`` by a plain name that is not in ``taken``.

    Returns the statement, and the markers by these names.

    A parameter of Spark has no dots in its name.
    """
    fresh = filterfalse(taken.__contains__, map("result_{}".format, count()))
    names: dict[ResultMarker, str] = {}
    parts, at = [], 0
    for match in _results(sql):
        marker = ResultMarker(match[0], match["group"] or "", match["key"] or "")
        if marker not in names:
            names[marker] = next(fresh)
        parts += [sql[at : match.start()], ":", names[marker]]
        at = match.end()
    return "".join([*parts, sql[at:]]), {name: marker for marker, name in names.items()}


def with_marked_results(sql: str) -> str:
    """Replace each result in ``sql`` by a plain marker of the same length, for parsing only."""
    spans = [(match.start(), match.end()) for match in _results(sql)]
    for start, end in spans:
        sql = sql[: start + 1] + sql[start + 1 : end].replace(".", "_") + sql[end:]
    return sql


def _results(sql: str) -> Iterator[re.Match[str]]:
    """Where ``sql`` asks for results, which is not after a name: that is a field of a variant."""
    end = 0
    for token in tokens(sql):
        if (
            token.text != ":"
            or token.start < end
            or re.match(r"\w", sql[token.start - 1 : token.start])
        ):
            continue
        if (match := _RESULT.match(sql, token.start)) is not None:
            end = match.end()
            yield match
