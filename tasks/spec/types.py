"""Convert column types between Spark SQL, as users write them, and Spark's JSON, as stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DIGITS = 38  # of a decimal, in Spark, DuckDB and Polars
MAX_TYPE = 4000  # characters
_DEPTH = 20

# By name, the type in Spark's JSON. All readers of an output read these alike.
_PLAIN = {
    **dict.fromkeys(("tinyint", "byte"), "byte"),
    **dict.fromkeys(("smallint", "short"), "short"),
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("bigint", "long"), "long"),
    **dict.fromkeys(("float", "real"), "float"),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "timestamp"),
    **{name: name for name in ("boolean", "double", "string", "binary", "date", "timestamp_ntz")},
}
_DDL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
EXPECTED = (
    "expected a type of Spark SQL: boolean, tinyint, smallint, int, bigint, float, double, "
    "decimal(p, s), string, binary, date, timestamp, timestamp_ntz, array<…>, map<…, …> or "
    "struct<name: …>"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_]\w*)|`(?P<quoted>(?:[^`]|``)+)`|(?P<number>\d+)|(?P<sign>[<>(),:])|$)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def parse_type(text: str) -> Any:
    """Parse a type of Spark SQL's DDL into Spark's JSON.

    Raises: ValueError: it is no type, or not known to all readers.
    """
    tokens = _Tokens(text)
    kind = tokens.type(0)
    if tokens.next[1]:
        raise tokens.wrong()
    return kind


class _Tokens:
    """Reads a type from left to right. ``next`` is the kind and text of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = self._split(text)
        self.next = next(self._found)

    def _split(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while (match := _TOKEN.match(text, at)) is not None and match.lastgroup:
            yield match.lastgroup, match[match.lastgroup]
            at = match.end()
        while True:
            yield "end", text[at:].strip()

    def wrong(self, why: str = "") -> ValueError:
        return ValueError(f"{self._text!r} is no type of a column{why}; {EXPECTED}")

    def take(self, kind: str, *texts: str) -> str:
        if self.next[0] != kind or (texts and self.next[1] not in texts):
            raise self.wrong()
        taken, self.next = self.next[1], next(self._found)
        return taken

    def goes_on(self, end: str) -> bool:
        """Whether another part of a list follows, which ``end`` would close."""
        return self.take("sign", ",", end) == ","

    def type(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise self.wrong(f": it is more than {_DEPTH} levels deep")
        name = self.take("word").lower()
        if name in _PLAIN:
            return _PLAIN[name]
        inner: Callable[[], Any] = lambda: self.type(depth + 1)  # noqa: E731
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise self.wrong()
        self.take("sign", "<")
        kind: dict[str, Any] = {"type": name}
        if name == "array":
            kind |= {"elementType": inner(), "containsNull": True}
            self.take("sign", ">")
        elif name == "map":
            kind["keyType"] = inner()
            self.take("sign", ",")
            kind |= {"valueType": inner(), "valueContainsNull": True}
            self.take("sign", ">")
        else:
            kind["fields"] = fields = [self._field(inner)]
            while self.goes_on(">"):
                fields.append(self._field(inner))
            if len({field["name"].lower() for field in fields}) < len(fields):
                raise self.wrong(": a struct has two fields of one name, for Spark")
        return kind

    def _decimal(self) -> str:
        precision, scale = 10, 0
        if self.next == ("sign", "("):
            self.take("sign")
            precision = int(self.take("number"))
            if self.goes_on(")"):
                scale = int(self.take("number"))
                self.take("sign", ")")
        if not 0 <= scale <= precision <= MAX_DIGITS or not precision:
            raise self.wrong(
                f": a decimal has 1 to {MAX_DIGITS} digits, some or all of them after the point"
            )
        return f"decimal({precision},{scale})"

    def _field(self, inner: Callable[[], Any]) -> dict[str, Any]:
        name = self.take(self.next[0] if self.next[0] == "quoted" else "word").replace("``", "`")
        if self.next == ("sign", ":"):
            self.take("sign")
        return field(name, inner())


def field(name: str, kind: Any) -> dict[str, Any]:
    """A column, or a field of a struct, in Spark's JSON of a struct."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def quoted(name: str) -> str:
    """The name of a column as SQL takes it, whatever is in the name."""
    return f"`{name.replace('`', '``')}`"


def shown(name: str) -> str:
    """The name of a column for people, quoted only where a word would not do."""
    return name if _WORD.fullmatch(name) else quoted(name)


def type_text(
    kind: Any, words: Mapping[str, str] = _DDL, named: Callable[[str], str] = shown
) -> str:
    """Format a type in Spark's JSON as `parse_type` reads it. ``named`` formats field names."""
    if isinstance(kind, str):
        return words.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{type_text(kind['elementType'], words, named)}>"
    if kind["type"] == "map":
        return (
            f"map<{type_text(kind['keyType'], words, named)}, "
            f"{type_text(kind['valueType'], words, named)}>"
        )
    if kind["type"] == "struct":
        fields = (
            f"{named(member['name'])}: {type_text(member['type'], words, named)}"
            for member in kind["fields"]
        )
        return f"struct<{', '.join(fields)}>"
    return str(kind.get("class") or kind["type"])  # a user-defined type


def type_in_sql(kind: Any, **words: str) -> str:
    """Format a type in Spark's JSON as Spark SQL, whatever the field names are.

    ``words``: names of plain types.
    """
    return type_text(kind, {**_DDL, **words}, quoted)
