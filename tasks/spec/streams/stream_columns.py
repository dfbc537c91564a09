"""The columns of a stream, as its ``schema:`` names them in SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.sql_tokens import tokens
from unstuck.tasks.spec.types import field, parse_type

_COLUMN = re.compile(r"(`[^`]+`|\w+)(?:\s*:\s*|\s+)(\S.*)", re.DOTALL)


def declared(schema: str) -> Fields:
    """The columns of ``schema``, of types that all readers know.

    Raises: ValueError: a part is no column, one is of no such type, or two have one name for Spark.
    """
    columns: dict[str, dict[str, Any]] = {}
    for part in _parts(schema):
        column = _COLUMN.fullmatch(part.strip())
        if column is None:
            raise ValueError(
                f"{part.strip()[:100]!r} is no column; expected names and types, as id BIGINT, at "
                "STRING"
            )
        name = column[1].strip("`")
        if name.lower() in columns:
            raise ValueError(f"the column {name.lower()} is there twice")
        columns[name.lower()] = field(name, parse_type(column[2]))
    return [*columns.values()]


def _parts(schema: str) -> Iterator[str]:
    """Split ``schema`` at the commas that are not inside brackets.

    Raises: ValueError.
    """
    begin, open_ = 0, ""
    for kind, token, at in tokens(schema):
        if kind == "open":
            raise ValueError(f"there is a {token[0]} that is not closed")
        if token in ("<", "("):
            open_ += token
        elif token in (">", ")") and open_[-1:] + token in ("<>", "()"):
            open_ = open_[:-1]
        elif token in (">", ")"):
            raise ValueError(
                f"there is a {token} too many after {schema[begin:at].strip()[-50:]!r}"
            )
        elif token == "," and not open_:
            yield schema[begin:at]
            begin = at + 1
    if open_:
        raise ValueError(f"there is a {open_[-1]} that is not closed")
    yield schema[begin:]
