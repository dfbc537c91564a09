"""Compares the columns of outputs, as Spark's JSON of a struct."""

from __future__ import annotations

import json
from typing import Any

# What a schema says of nulls: of a column, of an array's elements, of a map's values.
_NULLABLE = {"nullable", "containsNull", "valueContainsNull"}


def any_null(schema: str) -> Any:
    """A schema with every value nullable: members of a fork may differ in what they happen to hold no nulls in."""

    def loosen(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: True if key in _NULLABLE else loosen(value) for key, value in part.items()}
        return [loosen(item) for item in part] if isinstance(part, list) else part

    return loosen(json.loads(schema))


def difference(one: str, other: str) -> str:
    """The columns in which two schemas differ, for people."""
    columns = [{c["name"]: json.dumps(c["type"]).strip('"') for c in any_null(s)["fields"]} for s in (one, other)]
    names = dict.fromkeys([*columns[0], *columns[1]])
    found = [
        f"{name} is {columns[0].get(name, 'absent')} in one and {columns[1].get(name, 'absent')} in another"
        for name in names
        if columns[0].get(name) != columns[1].get(name)
    ]
    return "; ".join(found[:5]) or "the columns come in another order"
