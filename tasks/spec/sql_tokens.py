"""The tokens of Spark's SQL, and what Unstuck looks for in a statement: parameters, results, where it ends (pure).

What stands in strings, quoted names and comments is no code, and no value is ever put into the text. The rules are
those of Spark's own lexer (``SqlBaseLexer.g4``), with which a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import count, pairwise
from typing import Literal, NamedTuple

MAX_SQL = 1024 * 1024  # characters of a statement

# No part of it goes back over what it has read, so a text of any kind is read in time that grows with its length alone.
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
_WRITES = (("insert", "into"), ("insert", "overwrite"), ("delete", "from"), ("merge", "into"))


class SqlToken(NamedTuple):
    """A token that is code. ``string`` and ``name`` have their quotes; any sign is a ``symbol``.

    What is opened and not closed, be it a comment, is ``open`` and goes on to the end of the text.
    """

    kind: Literal["string", "name", "word", "symbol", "open"]
    text: str
    start: int


class ResultMarker(NamedTuple):
    """A marker in a statement. ``group`` is empty where it is not of the form ``:results.group.key``."""

    text: str
    group: str
    key: str


def tokens(sql: str) -> Iterator[SqlToken]:
    """The tokens of ``sql`` in order, without blanks and comments."""
    at = 0
    while found := _TOKEN.match(sql, at):
        start, at = at, found.end()
        match found.lastgroup:
            case "comment" | "dollar" as kind:
                at = _end_of_comment(sql, at) if kind == "comment" else sql.find(found[0], at) + len(found[0])
                if at < found.end():
                    yield SqlToken("open", sql[start:], start)
                    return
                if kind == "dollar":
                    yield SqlToken("string", sql[start:at], start)
            case "string" | "name" | "word" | "open" | None as kind:
                yield SqlToken(kind or "symbol", found[0], start)


def _end_of_comment(sql: str, at: int) -> int:
    """Where the comment ends that was opened before ``at``; 0 if nowhere. Comments may hold comments."""
    depth = 1
    for found in _COMMENT_ENDS.finditer(sql, at):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return 0


def parameters_in(sql: str) -> set[str]:
    """The names that ``sql`` may ask for as ``:name``. A field of a variant (``v:name``) looks the same."""
    return {
        name.text.strip("`")
        for colon, name in pairwise(tokens(sql))
        if colon.text == ":" and name.kind in ("word", "name")
    }


def markers_in(sql: str) -> set[str]:
    """The names that ``sql`` asks for as ``:name``, without what may be a field of a variant (``v:name``)."""
    every = [SqlToken("symbol", "", 0), *tokens(sql)]
    return {
        name.text.strip("`")
        for before, colon, name in zip(every, every[1:], every[2:], strict=False)
        if colon.text == ":" and name.kind in ("word", "name")
        if before.kind == "symbol" or before.start + len(before.text) < colon.start
    }


def first_word(sql: str) -> str:
    """The first word of ``sql``, in lower case; empty if it does not begin with one."""
    first = next(tokens(sql), None)
    return first.text.lower() if first is not None and first.kind == "word" else ""


def is_query(sql: str) -> bool:
    """True for a statement that answers with rows and writes none."""
    code = [token.text.lower() for token in tokens(sql) if token.kind in ("word", "symbol")]
    first = next((word for word in code if word != "("), "")
    may_write = first in ("with", "from")
    return first in ("select", "values", "table") or (may_write and not any(two in _WRITES for two in pairwise(code)))


def several_statements(sql: str) -> bool:
    """True if ``sql`` is more than one statement beyond doubt; False where only Spark's own parser can decide."""
    code = [token.text.lower() for token in tokens(sql)]
    if ";" not in code or _only_spark_can_tell(code):
        return False
    end = code.index(";")
    return end > 0 and any(text != ";" for text in code[end:])


def not_closed(sql: str) -> SqlToken | None:
    """The string, quoted name or comment that is open at the end of ``sql``, if Spark refuses ``sql`` for it."""
    every = list(tokens(sql))
    if not every or every[-1].kind != "open":
        return None
    last = every.pop()
    code = [token.text.lower() for token in every]
    allowed = code[:1] == ["set"] if last.text.startswith("/*") else _only_spark_can_tell(code)
    return None if allowed else last


def _only_spark_can_tell(code: list[str]) -> bool:
    """True for a statement that takes any text, and for a script, which has statements of its own."""
    return "begin" in code or (code[:1] or [""])[0] in _OF_ANY_TEXT


def result_markers(sql: str) -> Iterator[ResultMarker]:
    """Every marker of a result in ``sql``, in order."""
    return (ResultMarker(found[0], found["group"] or "", found["key"] or "") for found in _results(sql))


def with_plain_names(sql: str, taken: Collection[str]) -> tuple[str, dict[str, ResultMarker]]:
    """``sql`` with a plain name for each result, and the markers by these names; none of them is in ``taken``.

    A parameter of Spark has no dots in its name.
    """
    fresh = (name for n in count() if (name := f"result_{n}") not in taken)
    names: dict[ResultMarker, str] = {}
    parts, at = [], 0
    for found in _results(sql):
        marker = ResultMarker(found[0], found["group"] or "", found["key"] or "")
        if marker not in names:
            names[marker] = next(fresh)
        parts += [sql[at : found.start()], ":", names[marker]]
        at = found.end()
    return "".join([*parts, sql[at:]]), {name: marker for marker, name in names.items()}


def with_marked_results(sql: str) -> str:
    """``sql`` with a plain marker of the same length for each result, for those who only parse it."""
    found = [(one.start(), one.end()) for one in _results(sql)]
    for start, end in found:
        sql = sql[: start + 1] + sql[start + 1 : end].replace(".", "_") + sql[end:]
    return sql


def _results(sql: str) -> Iterator[re.Match[str]]:
    """Where ``sql`` asks for results, which is not after a name: that is a field of a variant."""
    end = 0
    for token in tokens(sql):
        if token.text != ":" or token.start < end or re.match(r"\w", sql[token.start - 1 : token.start]):
            continue
        if (found := _RESULT.match(sql, token.start)) is not None:
            end = found.end()
            yield found
